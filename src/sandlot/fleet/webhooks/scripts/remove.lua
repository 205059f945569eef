if call('HDEL', P, A.id) == 0 then return {'ok'} end
if call('HINCRBY', P .. ':count', A.tenant, -1) <= 0 then call('HDEL', P .. ':count', A.tenant) end
note_change()
return {'ok'}
