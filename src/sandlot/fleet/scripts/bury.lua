local value = call('HGET', P .. 's', A.id)
if not value then
  if settled then return {'ok', 0} end
  return {'unsettled', settles - now}
end
local entry = cmsgpack.unpack(value)
local taking = call('HGET', P .. 'takeovers', A.id)
if worker(entry[WORKER]).state ~= 'gone' or taking and call('EXISTS', P .. 'r:' .. taking) == 1 then
  return {'not_gone', entry[WORKER]}
end
drop(A.id, entry)
return {'ok', 1}
