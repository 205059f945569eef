local key = P .. 'r:' .. A.reservation
if call('EXISTS', key) == 0 then return {'ok', 0} end
if call('HINCRBY', key, 'holders', -1) > 0 then return {'ok', 0} end
release(A.reservation, true)
return {'ok', 1}
