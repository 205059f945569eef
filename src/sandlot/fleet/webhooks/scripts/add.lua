-- The same call again, from a coordinator that did not get the answer.
if call('HEXISTS', P, A.id) == 1 then return {'ok'} end
if call('HLEN', P) >= A.max then return {'full'} end
if (tonumber(call('HGET', P .. ':count', A.tenant)) or 0) >= A.max_of_tenant then return {'full of tenant'} end
call('HSET', P, A.id, A.webhook)
call('HINCRBY', P .. ':count', A.tenant, 1)
note_change()
return {'ok'}
