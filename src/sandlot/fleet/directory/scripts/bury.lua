-- The session stays recorded as ended, without a worker. If its worker comes back and records it,
-- the directory answers that the session does not belong to that worker.
local value = call('HGET', P .. 's', A.id)
if not value then return unsettled() or {'ok', 0} end
local entry = cmsgpack.unpack(value)
if entry[ENDED] then return {'ok', 0} end
if worker(entry[WORKER]).state ~= 'gone' or call('HEXISTS', P .. 'takeovers', A.id) == 1 then
  return {'not_gone', entry[WORKER]}
end
local _, keys = marks(entry[TENANT])
unmark(keys, entry[KEY], 's' .. A.id)
count_entry(-1, entry)
call('HSET', P .. 's', A.id, A.ended)
call('SREM', P .. 'w:' .. entry[WORKER] .. ':s', A.id)
call('ZREM', P .. 't:' .. entry[TENANT] .. ':s', A.id)
call('ZADD', P .. 'ended', now + A.remember, A.id)
return {'ok', 1}
