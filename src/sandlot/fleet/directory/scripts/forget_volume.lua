local refusal = fenced()
if refusal then return refusal end
local names = P .. 't:' .. A.tenant .. ':v'
if call('HGET', names, A.volume) == A.id then call('HDEL', names, A.volume) end
if A.number then call('HSET', P .. 'w:' .. A.worker, 'forgot', A.number) end
return {'ok', call('HINCRBY', P .. 'w:' .. A.worker, 'writes', 1)}
