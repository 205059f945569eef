local refusal = fenced()
if refusal then return refusal end
local key = P .. 'w:' .. A.worker
withdraw(A.worker)
if call('SCARD', key .. ':s') == 0 then
  call('DEL', key)
  call('ZREM', P .. 'workers', A.worker)
else
  call('HDEL', key, 'token', 'environments')
  call('HSET', key, 'until', now)
  call('ZADD', P .. 'workers', now, A.worker)
end
return {'ok'}
