local refusal = fenced()
if refusal then return refusal end
for _, id in ipairs(A.ids) do
  local value = call('HGET', P .. 's', id)
  local entry = value and cmsgpack.unpack(value)
  if entry and entry[WORKER] == A.worker then drop(id, entry) end
end
if A.number then call('HSET', P .. 'w:' .. A.worker, 'forgot', A.number) end
return {'ok', call('HINCRBY', P .. 'w:' .. A.worker, 'writes', 1)}
