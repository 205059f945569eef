-- The worker records the name again if it comes back and nobody has taken it.
if worker(A.worker).state ~= 'gone' then return {'not_gone'} end
local names = P .. 't:' .. A.tenant .. ':v'
if call('HGET', names, A.volume) == A.id then call('HDEL', names, A.volume) end
return {'ok'}
