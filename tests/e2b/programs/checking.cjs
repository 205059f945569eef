// Runs the checks of a program, and counts which functions of E2B's SDK they called. It prints what checking.py does.
const calls = {}

// The same object, which counts the calls of its functions and of what they return.
function counted(name, target) {
  return new Proxy(target, {
    get(object, property) {
      const value = Reflect.get(object, property, object)
      if (typeof property !== 'string') return value
      if (typeof value === 'function' && property !== 'constructor') {
        return (...given) => {
          calls[`${name}.${property}`] = (calls[`${name}.${property}`] ?? 0) + 1
          const result = value.apply(object, given)
          return result instanceof Promise ? result.then((each) => own(each)) : own(result)
        }
      }
      return own(value)
    },
  })
}

const OWN = ['Sandbox', 'Commands', 'Filesystem', 'Pty', 'Git', 'CommandHandle', 'WatchHandle',
  'SandboxPaginator', 'SnapshotPaginator']

function own(value) {
  if (Array.isArray(value)) return value.map(own)
  const name = value?.constructor?.name
  return OWN.includes(name) ? counted(name, value) : value
}

async function raises(kind, promise) {
  try {
    await promise
  } catch (error) {
    if (error instanceof kind) return error
    throw error
  }
  throw new Error(`nothing was raised where ${kind.name} was expected`)
}

async function until(holds, seconds = 20) {
  for (const end = Date.now() + seconds * 1000; Date.now() < end; ) {
    if (await holds()) return
    await new Promise((resolve) => setTimeout(resolve, 50))
  }
  throw new Error('it did not come to pass')
}

async function run(named) {
  const checks = {}
  for (const [name, check] of Object.entries(named)) {
    try {
      await check()
      checks[name] = ''
    } catch (error) {
      checks[name] = String(error?.stack ?? error) || 'an error without words'
    }
  }
  process.stdout.write(JSON.stringify({ checks, calls }), () => process.exit(0))
}

module.exports = { counted, raises, run, until }
