local value = call('HGET', P .. 's', A.id)
if not value then
  if is_settled() then return {'nothing'} end
  return {'unsettled', settles - now}
end
local w = worker(cmsgpack.unpack(value)[WORKER])
return {'ok', {A.id, value, w.id, w.url, w.epoch, w.state}}
