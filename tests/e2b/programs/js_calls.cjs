// The JavaScript SDK. `js_calls.cjs URL KEY`; it needs a server with the template `base`.
const assert = require('node:assert/strict')
const { counted, raises, run, until } = require('./checking.cjs')

const [url, key] = process.argv.slice(2)
Object.assign(process.env, { E2B_API_KEY: key, E2B_API_URL: url, E2B_SANDBOX_URL: url })
const e2b = require('e2b')

const Sandbox = counted('Sandbox', e2b.Sandbox)
let sandbox

run({
  async create() {
    sandbox = await Sandbox.create('base', { timeoutMs: 200_000, metadata: { who: 'js' }, envs: { A: '1' } })
    assert.ok(await sandbox.isRunning())
  },
  async info() {
    const info = await sandbox.getInfo()
    assert.equal(info.templateId, 'base')
    assert.deepEqual(info.metadata, { who: 'js' })
    assert.equal(info.state, 'running')
    await raises(e2b.NotFoundError, Sandbox.getInfo('0'.repeat(32)))
  },
  async unknown_template() {
    assert.match((await raises(e2b.SandboxError, Sandbox.create('bsae'))).message, /'base'/)
  },
  async wrong_key() {
    await raises(e2b.AuthenticationError, Sandbox.create({ apiKey: 'e2b_' + '00'.repeat(20) }))
  },
  async connect() {
    const again = await Sandbox.connect(sandbox.sandboxId)
    await again.files.write('connected.txt', 'yes')
    assert.equal(await sandbox.files.read('connected.txt'), 'yes')
    await raises(e2b.NotFoundError, Sandbox.connect('f'.repeat(32)))
  },
  async set_timeout() {
    await sandbox.setTimeout(300_000)
    const left = (await sandbox.getInfo()).endAt.getTime() - Date.now()
    assert.ok(left > 280_000 && left < 310_000, `${left}`)
  },
  async list() {
    const others = await Promise.all([1, 2, 3].map(() => Sandbox.create({ metadata: { crowd: 'js' } })))
    const pages = Sandbox.list({ query: { metadata: { crowd: 'js' } }, limit: 2 })
    const found = [...(await pages.nextItems()), ...(await pages.nextItems())]
    assert.equal(pages.hasNext, false)
    assert.deepEqual(found.map((each) => each.sandboxId).sort(), others.map((each) => each.sandboxId).sort())
    for (const each of others) assert.equal(await each.kill(), true)
    assert.equal(await others[0].kill(), false)
    await raises(e2b.SandboxNotFoundError, others[0].commands.run('true'))
  },
  async pause_and_resume() {
    const paused = await Sandbox.create({ envs: { KEPT: 'variable' } })
    await paused.files.write('kept.txt', 'file')
    assert.equal(await paused.pause(), true)
    assert.equal((await paused.getInfo()).state, 'paused')
    const again = await Sandbox.connect(paused.sandboxId)
    assert.equal(await again.files.read('kept.txt'), 'file')
    assert.equal((await again.commands.run('echo $KEPT')).stdout, 'variable\n')
    assert.equal(await Sandbox.kill(paused.sandboxId), true)
  },
  async snapshots() {
    await sandbox.files.write('state.txt', 'first')
    const { snapshotId } = await sandbox.createSnapshot()
    const pages = sandbox.listSnapshots()
    assert.deepEqual((await pages.nextItems()).map((each) => each.snapshotId), [snapshotId])
    const again = await Sandbox.create(snapshotId)
    assert.equal(await again.files.read('state.txt'), 'first')
    await again.kill()
    assert.equal(await Sandbox.deleteSnapshot(snapshotId), true)
    assert.equal(await Sandbox.deleteSnapshot(snapshotId), false)
  },
  async fork() {
    const forks = await sandbox.fork({ count: 2 })
    for (const fork of forks) {
      assert.equal(await fork.files.read('state.txt'), 'first')
      await fork.kill()
    }
  },
  async network() {
    const closed = await Sandbox.create({ allowInternetAccess: false })
    assert.equal((await closed.getInfo()).allowInternetAccess, false)
    await closed.updateNetwork({ allowOut: ['example.com'], denyOut: [e2b.ALL_TRAFFIC] })
    assert.deepEqual((await closed.getInfo()).network.allowOut, ['example.com'])
    await closed.kill()
  },
  async metrics() {
    const [now] = await sandbox.getMetrics()
    assert.ok(now.memUsed > 0 && now.memUsed < now.memTotal)
    assert.ok(now.cpuUsedPct >= 0 && now.cpuUsedPct <= 100)
  },
  async get_host() {
    assert.ok(sandbox.getHost(8000).startsWith(`8000-${sandbox.sandboxId}.`))
  },
  async run() {
    const result = await sandbox.commands.run('echo $A $B; echo err >&2; pwd', { envs: { B: '2' }, cwd: '/tmp' })
    assert.deepEqual([result.stdout, result.stderr, result.exitCode], ['1 2\n/tmp\n', 'err\n', 0])
    const error = await raises(e2b.CommandExitError, sandbox.commands.run('echo so; exit 3'))
    assert.deepEqual([error.exitCode, error.stdout], [3, 'so\n'])
    await raises(e2b.InvalidArgumentError, sandbox.commands.run('pwd', { cwd: '/not/there' }))
    await raises(e2b.TimeoutError, sandbox.commands.run('sleep 30', { timeoutMs: 500 }))
  },
  async callbacks() {
    const out = []
    const err = []
    await sandbox.commands.run('for i in 1 2 3; do echo $i; echo e$i >&2; sleep 0.05; done', {
      onStdout: (text) => out.push(text),
      onStderr: (text) => err.push(text),
    })
    assert.deepEqual([out.join(''), err.join('')], ['1\n2\n3\n', 'e1\ne2\ne3\n'])
  },
  async much_output() {
    const result = await sandbox.commands.run("head -c 3000000 /dev/zero | tr '\\0' x")
    assert.equal(result.stdout.length, 3_000_000)
  },
  async stdin() {
    const handle = await sandbox.commands.run('cat', { background: true, stdin: true })
    assert.ok((await sandbox.commands.list()).some((each) => each.pid === handle.pid))
    await sandbox.commands.sendStdin(handle.pid, 'typed\n')
    await sandbox.commands.closeStdin(handle.pid)
    assert.equal((await handle.wait()).stdout, 'typed\n')
    await raises(e2b.NotFoundError, sandbox.commands.sendStdin(99_999_999, 'x'))
  },
  async disconnect_and_connect() {
    const handle = await sandbox.commands.run('sleep 1; echo late; exit 7', { background: true })
    await handle.disconnect()
    const again = await sandbox.commands.connect(handle.pid)
    const error = await raises(e2b.CommandExitError, again.wait())
    assert.deepEqual([error.exitCode, error.stdout], [7, 'late\n'])
  },
  async kill_command() {
    const handle = await sandbox.commands.run('sleep 60', { background: true })
    assert.equal(await handle.kill(), true)
    assert.equal((await raises(e2b.CommandExitError, handle.wait())).exitCode, -1)
    assert.equal(await sandbox.commands.kill(handle.pid), false)
  },
  async pty() {
    let output = ''
    const decoder = new TextDecoder()
    const terminal = await sandbox.pty.create({
      rows: 20, cols: 70, cwd: '/tmp', onData: (data) => { output += decoder.decode(data) },
    })
    await sandbox.pty.resize(terminal.pid, { rows: 33, cols: 99 })
    await sandbox.pty.sendInput(terminal.pid, new TextEncoder().encode('stty size; pwd; exit 0\n'))
    assert.equal((await terminal.wait()).exitCode, 0)
    assert.match(output, /33 99/)
    assert.equal(await sandbox.pty.kill(terminal.pid), false)
  },
  async files() {
    const { files } = sandbox
    assert.equal((await files.write('dir/text.txt', 'naïve')).path, '/workspace/dir/text.txt')
    assert.equal(await files.read('dir/text.txt'), 'naïve')
    assert.deepEqual(await files.read('dir/text.txt', { format: 'bytes' }), new TextEncoder().encode('naïve'))
    const many = ['a', 'two words', 'ü'].map((name) => ({ path: `dir/${name}`, data: name }))
    assert.equal((await files.write(many)).length, 3)
    assert.equal((await files.list('dir')).length, 4)
    assert.ok(await files.exists('dir/ü'))
    assert.equal((await files.getInfo('dir/a')).size, 1)
    assert.equal((await files.rename('dir/a', 'dir/b')).path, '/workspace/dir/b')
    await files.remove('dir/b')
    assert.equal(await files.exists('dir/b'), false)
    assert.equal(await files.makeDir('dir/deep'), true)
    assert.equal(await files.makeDir('dir/deep'), false)
    await raises(e2b.NotFoundError, files.read('not-there.txt'))
  },
  async watch_dir() {
    const seen = []
    await sandbox.files.makeDir('watched')
    const handle = await sandbox.files.watchDir('watched', (event) => { seen.push(event) }, { recursive: true })
    await sandbox.files.write('watched/new.txt', '1')
    await until(() => seen.some((each) => each.name === 'new.txt' && each.type === 'create'))
    await handle.stop()
  },
  async links() {
    await sandbox.files.write('linked.txt', 'by a link')
    const link = await sandbox.downloadUrl('linked.txt', { useSignatureExpiration: 60_000 })
    assert.equal(await (await fetch(link)).text(), 'by a link')
    assert.equal((await fetch(link.replace('linked', 'connected'))).status, 401)
  },
  async git() {
    await sandbox.git.init('repo', { initialBranch: 'main' })
    assert.equal((await sandbox.git.branches('repo')).branches.length, 0)
    assert.equal((await sandbox.git.status('repo')).isClean, true)
  },
  async the_end() {
    assert.equal(await sandbox.kill(), true)
  },
})
