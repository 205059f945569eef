// Real code by the code interpreter's JavaScript SDK. `kernel_calls.cjs URL KEY`; it needs the template `code`.
const assert = require('node:assert/strict')
const { counted, raises, run } = require('../checking.cjs')

const [url, key] = process.argv.slice(2)
Object.assign(process.env, { E2B_API_KEY: key, E2B_API_URL: url, E2B_SANDBOX_URL: url })
const e2b = require('@e2b/code-interpreter')

const Sandbox = counted('Sandbox', e2b.Sandbox)
let sandbox

run({
  async state_stays() {
    sandbox = await Sandbox.create({ timeoutMs: 300_000 })
    const execution = await sandbox.runCode("x = 20; print('hi')")
    assert.deepEqual(execution.logs.stdout, ['hi\n'])
    assert.equal((await sandbox.runCode('x + 22')).text, '42')
  },
  async plot() {
    const code = "from IPython.display import Image\nImage(data=b'\\x89PNG not really', format='png')"
    const [result] = (await sandbox.runCode(code)).results
    assert.equal(Buffer.from(result.png, 'base64').toString('latin1'), '\x89PNG not really')
    assert.equal(result.isMainResult, true)
  },
  async exception() {
    const { error } = await sandbox.runCode('1 / 0')
    assert.equal(error.name, 'ZeroDivisionError')
  },
  async much_output() {
    const code = "import sys\nfor _ in range(100): sys.stdout.write('x' * 100_000)"
    assert.equal((await sandbox.runCode(code)).logs.stdout.join('').length, 10_000_000)
  },
  async contexts() {
    const context = await sandbox.createCodeContext({ cwd: '/tmp' })
    assert.equal((await sandbox.runCode('import os; os.getcwd()', { context })).text, "'/tmp'")
    await sandbox.runCode('y = 7', { context })
    assert.equal((await sandbox.runCode('y')).error.name, 'NameError')
    await sandbox.removeCodeContext(context)
  },
  async languages_and_variables() {
    const { logs } = await sandbox.runCode('a=2; echo $((a+3))', { language: 'bash' })
    assert.match(logs.stdout.join(''), /5\n/)
    const code = "import os; os.environ['MINE']"
    assert.equal((await sandbox.runCode(code, { envs: { MINE: 'yes' } })).text, "'yes'")
  },
  async timeout_interrupts() {
    await raises(e2b.TimeoutError, sandbox.runCode('import time; time.sleep(600)', { timeoutMs: 2000 }))
    assert.equal((await sandbox.runCode('x + 1')).text, '21')
  },
  async a_kernel_that_dies_is_reported() {
    const died = await sandbox.runCode('import os; os._exit(1)')
    assert.equal(died.error.name, 'KernelDied')
    assert.equal((await sandbox.runCode('x')).error.name, 'NameError')
    assert.equal((await sandbox.runCode('20 + 22')).text, '42')
  },
  async the_end() {
    assert.equal(await sandbox.kill(), true)
  },
})
