local refusal = fenced()
if refusal then return refusal end
expire()

-- Whether the existing record of another worker takes precedence over the new one.
local function stands(other, entry)
  if other[WORKER] == A.worker then return false end
  return other[GENERATION] > entry[GENERATION]
    or other[ENDED] and not entry[ENDED]
    or other[GENERATION] == entry[GENERATION] and worker(other[WORKER]).state ~= 'gone'
end

-- End the reservation that led to this record. The session uses its room.
local function consume(mark)
  if not mark or string.sub(mark, 1, 1) ~= 'r' then return end
  local id = string.sub(mark, 2)
  if call('HGET', P .. 'r:' .. id, 'worker') == A.worker then release(id, false) end
end

-- The session that a mark points to, unless it is this one.
local function other_of(mark, id)
  if not mark or mark == 's' .. id or string.sub(mark, 1, 1) ~= 's' then return nil end
  local value = call('HGET', P .. 's', string.sub(mark, 2))
  return value and cmsgpack.unpack(value)
end

local function thread_is_elsewhere(mark, id, created)
  local other = other_of(mark, id)
  if not other or other[ENDED] then return false end
  -- A worker has one session per thread. If the other session is its own and newer, this record is
  -- late.
  if other[WORKER] == A.worker then return other[CREATED] > created end
  return worker(other[WORKER]).state ~= 'gone'
end

-- An ended session becomes its thread's last session only if the thread has no newer one.
local function thread_has_younger(mark, id, created)
  if mark and string.sub(mark, 1, 1) == 'r' then return true end
  local other = other_of(mark, id)
  return other and (not other[ENDED] or other[CREATED] > created)
end

local function write(id, value, entry, old)
  count_entry(-1, old)
  count_entry(1, entry)
  local threads, keys = marks(entry[TENANT])
  local of_worker, of_tenant = P .. 'w:' .. A.worker .. ':s', P .. 't:' .. entry[TENANT] .. ':s'
  call('HSET', P .. 's', id, value)
  if old and old[WORKER] ~= A.worker then call('SREM', P .. 'w:' .. old[WORKER] .. ':s', id) end
  if entry[ENDED] then
    call('SREM', of_worker, id)
    call('ZREM', of_tenant, id)
    call('ZADD', P .. 'ended', now + A.remember_ended, id)
  else
    call('SADD', of_worker, id)
    call('ZADD', of_tenant, entry[CREATED], id)
  end
  local thread = entry[THREAD]
  if thread and not (entry[ENDED] and thread_has_younger(call('HGET', threads, thread), id, entry[CREATED])) then
    call('HSET', threads, thread, 's' .. id)
  end
  if old and old[KEY] ~= entry[KEY] then unmark(keys, old[KEY], 's' .. id) end
  if entry[KEY] then call('HSET', keys, entry[KEY], 's' .. id) end
end

local taken = {'ok', 0}
for _, item in ipairs(A.entries) do
  local id, value, reservation = item[1], item[2], item[3]
  local entry = cmsgpack.unpack(value)
  local kept = not reservation or call('EXISTS', P .. 'r:' .. reservation) == 1
  if reservation then consume('r' .. reservation) end
  local old = call('HGET', P .. 's', id)
  old = old and cmsgpack.unpack(old)
  -- The reservation of this take-over has expired, and the session's own worker has come back.
  local revoked = not kept and old and old[WORKER] ~= A.worker and worker(old[WORKER]).state ~= 'gone'
  local threads, keys = marks(entry[TENANT])
  local thread_mark = entry[THREAD] and call('HGET', threads, entry[THREAD])
  -- A late write must not undo a newer record or an end. An end still counts if the recorded
  -- generation is one higher: the directory refused that generation to its worker, so it was never
  -- created. If the recorded generation is two or more higher, the session has lived on another
  -- worker meanwhile.
  local stale = old and old[WORKER] == A.worker
    and (old[GENERATION] > entry[GENERATION] + (entry[ENDED] and 1 or 0) or old[ENDED] and not entry[ENDED])
  if revoked or old and stands(old, entry)
    or not entry[ENDED] and thread_is_elsewhere(thread_mark, id, entry[CREATED]) then
    taken[#taken + 1] = id
  elseif not stale then
    -- The thread's next reservation does not wait for an ended session.
    if not entry[ENDED] then
      consume(thread_mark)
      consume(entry[KEY] and call('HGET', keys, entry[KEY]))
    end
    local taking = call('HGET', P .. 'takeovers', id)
    if taking then
      consume('r' .. taking)
      if old and old[WORKER] == A.worker then release(taking, true) end
    end
    write(id, value, entry, old)
  end
end
taken[2] = call('HINCRBY', P .. 'w:' .. A.worker, 'writes', 1)
return taken
