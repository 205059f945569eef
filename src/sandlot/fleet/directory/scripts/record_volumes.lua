local refusal = fenced()
if refusal then return refusal end
local taken = {}
for _, volume in ipairs(A.volumes) do
  local tenant, name, id = volume[1], volume[2], volume[3]
  local names = P .. 't:' .. tenant .. ':v'
  if call('HSETNX', names, name, id) == 0 and call('HGET', names, name) ~= id then
    taken[#taken + 1] = id
  end
end
return {'ok', call('HINCRBY', P .. 'w:' .. A.worker, 'writes', 1), taken}
