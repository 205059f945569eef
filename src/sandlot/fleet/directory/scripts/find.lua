local value = call('HGET', P .. 's', A.id)
if not value then return unsettled() or {'nothing'} end
local w = worker(cmsgpack.unpack(value)[WORKER])
return {'ok', {A.id, value, w.id, w.url, w.epoch, w.state, w.over}}
