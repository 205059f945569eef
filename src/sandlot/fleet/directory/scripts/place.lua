expire()
local threads, keys = marks(A.tenant)
local RECOUNT_EVERY = 10000 -- milliseconds
local RECOUNT_AT_MOST = 5000 -- sessions, about 10 ms
local LOOKED_AT = 16 -- workers that a create considers before it takes the one with most room
-- The lookups below set these: the thread's last session, and the session to take over.
local before, lost = {}, {}

local function at(word, w, reservation)
  local bare = word == 'known' and not reservation
  return {
    word, w.id, w.url, w.epoch, w.state, w.over, reservation or '', bare and {} or before, bare and {} or lost,
  }
end

local function late(w)
  return {'late', w.id, math.max(0, w.lease_end + A.lost_after - now)}
end

local function named(id)
  local value = id ~= '' and call('HGET', P .. 's', id)
  return value and {id, value} or {}
end

-- While a session is in creation, other requests for it go to the same worker. They carry
-- everything that the first request carried, because the first one may never have arrived. A request
-- of another size or key waits: the worker may serve it first, and its limits were not checked.
local function follow(id)
  local r = call('HMGET', P .. 'r:' .. id, 'worker', 'until', 'before', 'takes_over', 'by', 'cpus', 'memory')
  if not r[1] then return nil end
  local w = worker(r[1])
  if tonumber(r[2]) <= now or w.state == 'gone' then
    release(id, true)
    return nil
  end
  if w.state ~= 'alive' then return late(w) end
  local same = r[5] == A.by and tonumber(r[6]) == A.cpus and tonumber(r[7]) == A.memory
  if r[6] and r[4] == '' and not same then return {'opening'} end
  call('HINCRBY', P .. 'r:' .. id, 'holders', 1)
  before, lost = named(r[3]), named(r[4])
  return at('known', w, id)
end

local function look(mark, ended_counts)
  if not mark then return nil end
  local kind, id = string.sub(mark, 1, 1), string.sub(mark, 2)
  if kind == 'r' then return follow(id) end
  local value = call('HGET', P .. 's', id)
  if not value then return nil end
  local entry = cmsgpack.unpack(value)
  if entry[TENANT] ~= A.tenant then return nil end
  local w = worker(entry[WORKER])
  if entry[ENDED] then
    -- A key keeps pointing to its session after the end. A thread gets a new session.
    if not ended_counts then
      before = {id, value}
    elseif w.state ~= 'gone' then
      return w.state == 'alive' and at('known', w) or late(w)
    end
    return nil
  end
  if w.state == 'alive' then return at('known', w) end
  if w.state == 'late' then return late(w) end
  local taking = call('HGET', P .. 'takeovers', id)
  local following = taking and follow(taking)
  if following then return following end
  lost = {id, value}
  if A.takes_over == id then return nil end
  return at('lost', w)
end

local function look_at_thread()
  local mark = call('HGET', threads, A.thread)
  local found = look(mark, false)
  if found or not mark or string.sub(mark, 1, 1) ~= 'r' then return found end
  -- The reservation was released, which made the thread point to its last session again.
  return look(call('HGET', threads, A.thread), false)
end

-- The same call again, from a client that did not get the answer.
local again = call('HMGET', P .. 'r:' .. A.reservation, 'worker', 'before', 'takes_over')
if again[1] then
  before, lost = named(again[2]), named(again[3])
  return at('placed', worker(again[1]), A.reservation)
end

local known
if A.takes_over then
  known = look('s' .. A.takes_over, true)
  if not known and not lost[1] then
    return unsettled() or {'nothing'}
  end
else
  known = A.thread and look_at_thread()
    or A.key and look(call('HGET', keys, A.key), true)
end
if known then return known end
local function limit_reached(holder, sessions, cpus, memory)
  local use = call('HMGET', P .. 'use:' .. holder, 'n', 'c', 'm')
  if sessions and (tonumber(use[1]) or 0) + 1 > sessions then return 'sessions' end
  if cpus and (tonumber(use[2]) or 0) + A.cpus > cpus then return 'cpus' end
  if memory and (tonumber(use[3]) or 0) + A.memory > memory then return 'memory_mb' end
  return nil
end

-- Count a holder's use again, now and then before it is refused: members of an earlier version, in the
-- middle of an upgrade, end sessions and reservations without counting.
local function recount(holder)
  local key, sessions = P .. 'use:' .. holder, P .. 't:' .. A.tenant .. ':s'
  if now < (tonumber(call('HGET', key, 'again')) or 0) or call('ZCARD', sessions) > RECOUNT_AT_MOST then
    return false
  end
  local n, c, m = 0, 0, 0
  local function add(by, cpus, memory)
    if holder == 't:' .. A.tenant or holder == 'k:' .. by then n, c, m = n + 1, c + cpus, m + memory end
  end
  for _, id in ipairs(call('ZRANGE', sessions, 0, -1)) do
    local entry = call('HGET', P .. 's', id)
    local counts = entry and cmsgpack.unpack(entry)[COUNTS]
    if counts then add(counts[1], counts[2], counts[3]) end
  end
  for _, id in ipairs(call('ZRANGE', P .. 'r', 0, RECOUNT_AT_MOST)) do
    local r = call('HMGET', P .. 'r:' .. id, 'tenant', 'counts', 'by', 'cpus', 'memory')
    if r[1] == A.tenant and r[2] == '1' and r[4] then add(r[3], tonumber(r[4]), tonumber(r[5])) end
  end
  call('HSET', key, 'n', n, 'c', c, 'm', m, 'again', now + RECOUNT_EVERY)
  return true
end

-- An unsettled directory does not know all sessions, so it cannot check a limit either.
local refusal = (A.thread or A.key or A.allowances) and unsettled()
if refusal then return refusal end
-- A limit is false if there is none. A create that tries its next worker has passed its rate before.
local counted_at, due = rate_time(), {}
if not A.takes_over then
  for i, allowance in ipairs(A.allowances or {}) do
    local holder, sessions, cpus, memory, rate = unpack(allowance)
    local reached = limit_reached(holder, sessions, cpus, memory)
    if reached and recount(holder) then reached = limit_reached(holder, sessions, cpus, memory) end
    if reached then return {'limit', i, reached} end
    if rate and not A.avoid then
      local after, wait = gcra(rate[1], rate[2], rate[3], counted_at)
      if wait > 0 then return {'rate', i, math.ceil(wait * 1000)} end
      due[rate[1]] = after
    end
  end
end

local units = A.units or 1
local free, warm = P .. 'free:' .. A.environment, P .. 'warm:' .. A.environment
local turns = P .. 'turn:' .. A.environment
local avoided = {}
for _, id in ipairs(A.avoid or {}) do avoided[id] = true end

-- Of the first LOOKED_AT workers in turn, return one with a warm sandbox, or else the first with
-- room. Dead workers are removed, so that no later call meets them. Workers to avoid are skipped.
local function next_in_turn()
  while true do
    local cold, dead = nil, false
    for _, id in ipairs(call('ZRANGE', turns, 0, LOOKED_AT - 1)) do
      local w = worker(id)
      local room = tonumber(call('ZSCORE', free, id))
      if w.state ~= 'alive' or not room then
        unoffer(A.environment, id)
        dead = true
      elseif not avoided[id] and room >= units then
        if call('HEXISTS', P .. 'ready:' .. A.environment, id) == 1 then return w, 1 end
        cold = cold or w
        if call('EXISTS', warm) == 0 then break end
      end
    end
    if cold or not dead then return cold, 0 end
  end
end

-- The worker with most room. Needed in a large fleet where the next workers in turn have no warm
-- sandbox, and for workers of an earlier version, which take no turns.
local function best(key)
  local skipped = 0
  while true do
    local top = call('ZREVRANGE', key, skipped, skipped, 'WITHSCORES')
    if not top[1] then return nil end
    local w = worker(top[1])
    if w.state ~= 'alive' then
      unoffer(A.environment, top[1])
    elseif avoided[w.id] then
      skipped = skipped + 1
    else
      return tonumber(top[2]) >= units and w or nil
    end
  end
end

local w, is_warm
if A.only then
  w = worker(A.only)
  local room = tonumber(call('ZSCORE', free, w.id))
  if w.state ~= 'alive' or avoided[w.id] or not room or room < units then
    return {'only', w.state, room and 1 or 0}
  end
  is_warm = call('HEXISTS', P .. 'ready:' .. A.environment, w.id)
else
  w, is_warm = next_in_turn()
  if is_warm == 0 then
    local other = best(warm)
    if other then w, is_warm = other, 1 else w = w or best(free) end
  end
  if not w then return {'full', call('ZCARD', free)} end
end

local id = A.reservation
local promised = P .. 'w:' .. w.id .. ':p'
local room = tonumber(call('ZSCORE', free, w.id))
local turn = math.max(tonumber(call('ZSCORE', turns, w.id)) or 0, turn_of_last(A.environment))
call('HSET', P .. 'turns', A.environment, turn)
call('ZADD', turns, turn + 1 / room, w.id)
shift(A.environment, w.id, -1, units, is_warm == 1)
call('HINCRBY', promised, 'f:' .. A.environment, units)
if is_warm == 1 then call('HINCRBY', promised, 'w:' .. A.environment, 1) end
if not A.takes_over then count(1, A.tenant, A.by, A.cpus, A.memory) end
for name, after in pairs(due) do keep_due(name, after, counted_at) end
call(
  'HSET', P .. 'r:' .. id, 'worker', w.id, 'environment', A.environment, 'warm', is_warm, 'tenant', A.tenant,
  'thread', A.thread or '', 'key', A.key or '', 'counts', A.takes_over and 0 or 1,
  'takes_over', A.takes_over or '', 'before', before[1] or '', 'holders', 1, 'until', now + A.reservation_time,
  'units', units, 'by', A.by, 'cpus', A.cpus, 'memory', A.memory
)
call('ZADD', P .. 'r', now + A.reservation_time, id)
if A.takes_over then
  call('HSET', P .. 'takeovers', A.takes_over, id)
else
  if A.thread then call('HSET', threads, A.thread, 'r' .. id) end
  if A.key then call('HSET', keys, A.key, 'r' .. id) end
end
return at('placed', w, id)
