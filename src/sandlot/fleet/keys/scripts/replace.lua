-- Only if the key is still what the caller has read.
if call('HGET', P, A.id) ~= A.before then return {'changed'} end
call('HSET', P, A.id, A.key)
if A.ends then call('ZADD', P .. ':ends', A.ends, A.id) end
note_change(A.id)
return {'ok'}
