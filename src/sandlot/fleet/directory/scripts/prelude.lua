-- Prepended to every script. KEYS[1] is the prefix of all keys of a cell. Its hash tag keeps them
-- in one slot of a Redis Cluster. ARGV[1] holds the arguments by name. Answers are arrays, and
-- their first element names the outcome.
--
-- <prefix>meta               hash: generation, born, settles, and the directory's clock
-- <prefix>workers            sorted set: worker -> end of its lease
-- <prefix>epochs             hash: worker -> its last epoch; kept after the worker is gone
-- <prefix>w:<worker>         hash: card, lease, last report, number of its last forget
-- <prefix>w:<worker>:s       set: its live and lost sessions
-- <prefix>w:<worker>:p       hash: reserved places, f:<environment> all, w:<environment> warm ones
-- <prefix>free:<environment> sorted set: worker -> room;  <prefix>warm:<environment> the same, for
--                            workers with a warm sandbox;  <prefix>ready:<environment> hash: worker ->
--                            how many warm sandboxes it has
-- <prefix>turn:<environment> sorted set: worker with room -> its next turn;  <prefix>turns hash:
--                            environment -> the turn of the last create. A create moves its worker's
--                            turn on by 1 / its room, so that workers get creates in proportion to
--                            the room they have left
-- <prefix>s                  hash: session -> entry, a MessagePack array (see ENTRY)
-- <prefix>ended              sorted set: ended session -> when to forget it
-- <prefix>t:<tenant>:s       sorted set: live and lost sessions by age
-- <prefix>t:<tenant>:th, :k  hashes: thread, idempotency key -> mark: 's' session or 'r' reservation
-- <prefix>t:<tenant>:v       hash: name -> volume
-- <prefix>use:<holder>       hash: what a tenant (t:<tenant>) or a key (k:<key>) uses, with reserved places:
--                            n sessions, c cores in thousandths, m MiB of memory; again: when they may
--                            be counted again
-- <prefix>r:<reservation>    hash;  <prefix>r  sorted set: reservation -> its end
-- <prefix>takeovers          hash: lost session -> reservation for its new sandbox
local P = KEYS[1]
local A = cmsgpack.unpack(ARGV[1])
local call = redis.call
-- Positions in an entry.
local WORKER, GENERATION, ENDED, TENANT, THREAD, KEY, CREATED, COUNTS = 1, 2, 3, 4, 5, 6, 7, 9
local CLOCK_STEP = 50 -- milliseconds; the clock is not saved more often than this
local EXPIRE_AT_ONCE = 5 -- expired items that one call cleans up, so that no call pays for all of them

-- Identifies this Redis process.
local function run_id()
  return string.match(call('INFO', 'server'), 'run_id:(%x+)')
end

-- Directory time, in milliseconds. It continues from its last value after Redis was down or
-- unreachable, and after Redis's own clock was changed. At most one lease of any silence counts. So
-- every worker must report again before it gets new sessions, and no worker is given up because of
-- the silence.
local t = call('TIME')
local real = t[1] * 1000 + math.floor(t[2] / 1000)
local meta = call('HMGET', P .. 'meta', 'generation', 'clock', 'seen', 'born', 'settles')
local generation, now, born, settles = meta[1], nil, tonumber(meta[4]), tonumber(meta[5])
local stepped = false -- whether this call saved the clock; a few calls per second do
if not generation then
  generation, now, born, settles = A.fresh, real, real, real + A.lease
  call(
    'HSET', P .. 'meta', 'generation', generation, 'clock', now, 'seen', real, 'born', born, 'settles', settles,
    'run', run_id()
  )
else
  local passed = real - tonumber(meta[3])
  now = tonumber(meta[2]) + math.max(0, math.min(passed, A.lease + CLOCK_STEP))
  stepped = passed >= CLOCK_STEP or passed < 0
  if stepped then
    call('HSET', P .. 'meta', 'clock', now, 'seen', real)
  end
end
-- A restarted Redis, or a promoted replica, may have lost the last writes. Until the workers have
-- reported to it, it counts as emptied. Reports check for a restart, so that settling begins at the
-- restart and not with the first lookup. Lookups that need a settled directory check again.
local function notice_restart()
  local run = run_id()
  if call('HGET', P .. 'meta', 'run') == run then return end
  born, settles = now, math.max(settles, now + A.lease)
  call('HSET', P .. 'meta', 'run', run, 'born', born, 'settles', settles)
end

-- Check this before answering that something does not exist.
local function is_settled()
  notice_restart()
  return now >= settles
end

-- Nil if the directory is settled. Otherwise the answer that it cannot know yet what exists.
local function unsettled()
  if is_settled() then return nil end
  return {'unsettled', settles - now}
end

local function state_at(lease_end)
  if now < lease_end then return 'alive' end
  return now < lease_end + A.lost_after and 'late' or 'gone'
end

-- {id, url, epoch, state, lease_end, over}. `over` is the time since the lease expired. A worker
-- that was swept is gone.
local function worker(id)
  local w = call('HMGET', P .. 'w:' .. id, 'url', 'epoch', 'until')
  if not w[1] then return {id = id, url = '', epoch = 0, state = 'gone', lease_end = 0, over = 0} end
  local lease_end = tonumber(w[3])
  return {
    id = id, url = w[1], epoch = tonumber(w[2]), state = state_at(lease_end), lease_end = lease_end,
    over = math.max(0, now - lease_end),
  }
end

local function keep_settling()
  if now >= settles then return end
  settles = math.max(settles, math.min(now + A.lease, born + A.max_settling))
  call('HSET', P .. 'meta', 'settles', settles)
end

-- Nil if the caller holds the worker's current lease. Otherwise the answer that it does not.
-- 'late' refuses a write that was sent before the worker's last forget but arrives after it, as
-- happens when a network comes back: it would record again what that forget removed. The worker
-- numbers its writes. If it still waits for this one, it sends it again with a new number.
local function fenced()
  local w = call('HMGET', P .. 'w:' .. A.worker, 'epoch', 'token', 'forgot')
  local epoch = tonumber(w[1])
  -- The worker left, or the directory lost writes in a failover and knows only an earlier lease.
  if not epoch or epoch < A.epoch or epoch == A.epoch and not w[2] then return {'unknown'} end
  if epoch ~= A.epoch or w[2] ~= A.token then return {'replaced'} end
  if A.number and w[3] and A.number < tonumber(w[3]) then return {'late'} end
  return nil
end

local function lower(key, field, by)
  if call('HINCRBY', key, field, -(by or 1)) <= 0 then call('HDEL', key, field) end
end

-- Count one session (by = 1), or no longer count it (by = -1), for its tenant and its key.
local function count(by, tenant, key, cpus, memory)
  for _, holder in ipairs({'t:' .. tenant, key ~= '' and 'k:' .. key or nil}) do
    local use = P .. 'use:' .. holder
    if call('HINCRBY', use, 'n', by) <= 0 then
      call('DEL', use)
    else
      call('HINCRBY', use, 'c', by * cpus)
      call('HINCRBY', use, 'm', by * memory)
    end
  end
end

-- The same for a session's entry. An ended session uses nothing, and entries of an earlier version were
-- never counted.
local function count_entry(by, entry)
  local counts = entry and not entry[ENDED] and entry[COUNTS]
  if counts then count(by, entry[TENANT], counts[1], counts[2], counts[3]) end
end

local function turn_of_last(environment)
  return tonumber(call('HGET', P .. 'turns', environment)) or 0
end

local function leave_turns(environment, id)
  local turns = P .. 'turn:' .. environment
  if call('ZREM', turns, id) == 1 and call('ZCARD', turns) == 0 then call('HDEL', P .. 'turns', environment) end
end

-- A worker that is new, or was passed over, does not catch up. A worker with more room than before
-- waits no longer than its next turn.
local function take_turns(environment, id, free)
  local last = turn_of_last(environment)
  local turn = tonumber(call('ZSCORE', P .. 'turn:' .. environment, id))
  local latest = last + 1 / free
  local next = turn and math.min(math.max(turn, last), latest) or latest
  if next ~= turn then call('ZADD', P .. 'turn:' .. environment, next, id) end
end

local function offer(environment, id, free, ready)
  if free > 0 then take_turns(environment, id, free) else leave_turns(environment, id) end
  call('ZADD', P .. 'free:' .. environment, free, id)
  if ready > 0 then
    call('ZADD', P .. 'warm:' .. environment, free, id)
    call('HSET', P .. 'ready:' .. environment, id, ready)
  else
    call('ZREM', P .. 'warm:' .. environment, id)
    call('HDEL', P .. 'ready:' .. environment, id)
  end
end

local function unoffer(environment, id)
  leave_turns(environment, id)
  call('ZREM', P .. 'free:' .. environment, id)
  call('ZREM', P .. 'warm:' .. environment, id)
  call('HDEL', P .. 'ready:' .. environment, id)
end

-- Take (by = -1) or give back (by = 1) a place of this many units, if the worker offers any room at
-- all.
local function shift(environment, id, by, units, warm)
  local free = call('ZSCORE', P .. 'free:' .. environment, id)
  if not free then return end
  local ready = tonumber(call('HGET', P .. 'ready:' .. environment, id)) or 0
  offer(environment, id, tonumber(free) + by * units, warm and ready + by or ready)
end

-- Place no new sessions on a worker until it reports room again.
local function withdraw(id)
  local environments = call('HGET', P .. 'w:' .. id, 'environments')
  for environment in string.gmatch(environments or '', '%S+') do
    unoffer(environment, id)
  end
end

local function marks(tenant)
  return P .. 't:' .. tenant .. ':th', P .. 't:' .. tenant .. ':k'
end

local function unmark(key, field, mark)
  if field and field ~= '' and call('HGET', key, field) == mark then call('HDEL', key, field) end
end

local function drop(id, entry)
  count_entry(-1, entry)
  local threads, keys = marks(entry[TENANT])
  call('HDEL', P .. 's', id)
  call('SREM', P .. 'w:' .. entry[WORKER] .. ':s', id)
  call('ZREM', P .. 't:' .. entry[TENANT] .. ':s', id)
  call('ZREM', P .. 'ended', id)
  unmark(threads, entry[THREAD], 's' .. id)
  unmark(keys, entry[KEY], 's' .. id)
end

-- End a reservation. `refund` frees its room. Otherwise a session uses the room.
local function release(id, refund)
  local key = P .. 'r:' .. id
  local r = call(
    'HMGET', key, 'worker', 'environment', 'warm', 'tenant', 'thread', 'key', 'counts', 'takes_over', 'before', 'units',
    'by', 'cpus', 'memory'
  )
  call('DEL', key)
  call('ZREM', P .. 'r', id)
  if not r[1] then return end
  local promised = P .. 'w:' .. r[1] .. ':p'
  local units = tonumber(r[10]) or 1 -- reservations of an earlier version have no units
  lower(promised, 'f:' .. r[2], units)
  if r[3] == '1' then lower(promised, 'w:' .. r[2]) end
  if refund then shift(r[2], r[1], 1, units, r[3] == '1') end
  if r[7] == '1' then
    if r[12] then
      count(-1, r[4], r[11], tonumber(r[12]), tonumber(r[13]))
    else
      lower(P .. 'q', r[4]) -- a coordinator of version 0.2 made it, and counts there
    end
  end
  local threads, keys = marks(r[4])
  unmark(threads, r[5], 'r' .. id)
  unmark(keys, r[6], 'r' .. id)
  unmark(P .. 'takeovers', r[8], id)
  if r[9] ~= '' and call('HEXISTS', P .. 's', r[9]) == 1 then call('HSETNX', threads, r[5], 's' .. r[9]) end
end

local function expire()
  for _, id in ipairs(call('ZRANGEBYSCORE', P .. 'r', '-inf', now, 'LIMIT', 0, EXPIRE_AT_ONCE)) do
    release(id, true)
  end
  for _, id in ipairs(call('ZRANGEBYSCORE', P .. 'ended', '-inf', now, 'LIMIT', 0, EXPIRE_AT_ONCE)) do
    local value = call('HGET', P .. 's', id)
    -- An id may lack its entry, for example after a partial restore. That must not fail every call.
    if value then drop(id, cmsgpack.unpack(value)) else call('ZREM', P .. 'ended', id) end
  end
end
