for id, at in pairs(A.used) do
  local before = tonumber(call('HGET', P .. ':used', id))
  if call('HEXISTS', P, id) == 1 and (not before or before < at) then
    call('HSET', P .. ':used', id, string.format('%.3f', at))
  end
end
return {'ok'}
