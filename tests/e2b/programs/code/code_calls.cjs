// The code interpreter's JavaScript SDK. `code_calls.cjs URL KEY`; it needs what test_code_interpreter.py scripts.
const assert = require('node:assert/strict')
const { counted, raises, run } = require('../checking.cjs')

const [url, key] = process.argv.slice(2)
Object.assign(process.env, { E2B_API_KEY: key, E2B_API_URL: url, E2B_SANDBOX_URL: url })
const e2b = require('@e2b/code-interpreter')

const Sandbox = counted('Sandbox', e2b.Sandbox)
let sandbox

run({
  async create() {
    sandbox = await Sandbox.create()
    assert.equal((await sandbox.getInfo()).templateId, 'code')
  },
  async run_code() {
    const execution = await sandbox.runCode("print('hi')\n20 + 22")
    assert.equal(execution.text, '42')
    assert.deepEqual(execution.logs.stdout, ['hi\n'])
    assert.equal(execution.executionCount, 1)
  },
  async state_stays() {
    await sandbox.runCode('x = 5')
    assert.equal((await sandbox.runCode('x + 1')).text, '6')
  },
  async results() {
    const [plot, table] = (await sandbox.runCode('show everything')).results
    assert.equal(Buffer.from(plot.png, 'base64').toString(), 'a picture')
    assert.equal(table.html, '<table></table>')
    assert.equal(table.isMainResult, true)
    assert.deepEqual([plot.chart.type, plot.chart.title], ['pie', 'Shares'])
    assert.deepEqual(table.data, { n: [1, 2] })
  },
  async errors_and_callbacks() {
    const seen = []
    const { error } = await sandbox.runCode('fails loudly', {
      onStdout: (each) => seen.push(each.line),
      onStderr: (each) => seen.push(each.line),
      onError: (each) => seen.push(each.name),
    })
    assert.deepEqual(seen, ['before\n', 'trouble\n', 'ValueError'])
    assert.equal(error.value, 'it was wrong')
  },
  async languages_and_variables() {
    assert.equal((await sandbox.runCode('tell language', { language: 'ts' })).text, 'typescript')
    assert.equal((await sandbox.runCode('tell MINE', { envs: { MINE: 'yes' } })).text, 'yes')
    await raises(e2b.SandboxError, sandbox.runCode('1', { language: 'java' }))
  },
  async contexts() {
    const context = await sandbox.createCodeContext({ language: 'python', cwd: '/tmp' })
    await sandbox.runCode('y = 7', { context })
    assert.equal((await sandbox.runCode('y', { context })).text, '7')
    await sandbox.restartCodeContext(context)
    assert.notEqual((await sandbox.runCode('y', { context })).error, undefined)
    await sandbox.removeCodeContext(context)
    assert.ok(!(await sandbox.listCodeContexts()).some((each) => each.id === context.id))
    await raises(e2b.NotFoundError, sandbox.removeCodeContext(context))
  },
  async timeout_interrupts() {
    await raises(e2b.TimeoutError, sandbox.runCode('slow', { timeoutMs: 1000 }))
    assert.equal((await sandbox.runCode('20 + 22')).text, '42')
  },
  async the_end() {
    assert.equal(await sandbox.kill(), true)
  },
})
