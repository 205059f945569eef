-- The session stays as ended, and as nobody's: a worker that comes back with it is told that it is not its own.
local value = call('HGET', P .. 's', A.id)
if not value then
  if is_settled() then return {'ok', 0} end
  return {'unsettled', settles - now}
end
local entry = cmsgpack.unpack(value)
if entry[ENDED] then return {'ok', 0} end
local taking = call('HGET', P .. 'takeovers', A.id)
if worker(entry[WORKER]).state ~= 'gone' or taking and call('EXISTS', P .. 'r:' .. taking) == 1 then
  return {'not_gone', entry[WORKER]}
end
local _, keys = marks(entry[TENANT])
unmark(keys, entry[KEY], 's' .. A.id)
call('HSET', P .. 's', A.id, A.ended)
call('SREM', P .. 'w:' .. entry[WORKER] .. ':s', A.id)
call('ZREM', P .. 't:' .. entry[TENANT] .. ':s', A.id)
call('ZADD', P .. 'ended', now + A.remember, A.id)
return {'ok', 1}
