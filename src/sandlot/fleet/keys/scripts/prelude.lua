-- Prepended to every script. KEYS[1] is the prefix of all keys of a cell. ARGV[1] holds the
-- arguments by name. Answers are arrays, and their first element names the outcome.
--
-- <prefix>keys              hash: API key's id -> the key as JSON
-- <prefix>keys:used         hash: id -> when it was last used
-- <prefix>keys:limits       hash: tenant -> its limits as JSON
-- <prefix>keys:policies     hash: tenant -> the name of its command policy
-- <prefix>keys:changed      sorted set: id, or t:<tenant> for its limits and policy -> number of the last change
-- <prefix>keys:ends         sorted set: id -> when it ends or ended
-- <prefix>keys:all          sorted set, by id;  <prefix>keys:of:<tenant> the same for one tenant
-- <prefix>keys:meta         hash: name, a random one for this set of keys; changes, how many there were
local P = KEYS[1] .. 'keys'
local A = cmsgpack.unpack(ARGV[1])
local call = redis.call

-- Names the numbering of changes. A Redis that was restarted, or a promoted replica, may have lost
-- the last writes, and would give their numbers to other changes. So its process is part of the name.
-- Reading writes nothing, because workers may only read. So a set of keys has no name before its first change.
-- The second result is the name as it was then.
local function name()
  local run = string.match(call('INFO', 'server'), 'run_id:(%x+)')
  return (call('HGET', P .. ':meta', 'name') or '') .. ':' .. run, ':' .. run
end

local function note_change(id)
  call('HSETNX', P .. ':meta', 'name', A.fresh)
  call('ZADD', P .. ':changed', call('HINCRBY', P .. ':meta', 'changes', 1), id)
end

-- Each key with the time of its last use; without those that are gone.
local function with_use(ids, answer)
  for _, id in ipairs(ids) do
    local key = call('HGET', P, id)
    if key then answer[#answer + 1] = {key, call('HGET', P .. ':used', id) or ''} end
  end
  return answer
end

local function drop(id, tenant)
  call('HDEL', P, id)
  call('HDEL', P .. ':used', id)
  call('ZREM', P .. ':of:' .. tenant, id)
  for _, set in ipairs({':changed', ':ends', ':all'}) do call('ZREM', P .. set, id) end
end
