local swept = 0
while swept < A.limit do
  local id = call(
    'ZRANGEBYSCORE', P .. 'workers', '-inf', now - A.lost_after - A.remember_lost, 'LIMIT', 0, 1
  )[1]
  if not id then break end
  local ids = call('SRANDMEMBER', P .. 'w:' .. id .. ':s', A.limit - swept)
  for _, session in ipairs(ids) do
    local value = call('HGET', P .. 's', session)
    if value then drop(session, cmsgpack.unpack(value)) else call('SREM', P .. 'w:' .. id .. ':s', session) end
  end
  swept = swept + #ids
  if call('SCARD', P .. 'w:' .. id .. ':s') == 0 then
    withdraw(id)
    call('DEL', P .. 'w:' .. id)
    call('ZREM', P .. 'workers', id)
  end
end
return {'ok', swept}
