local id = call('HGET', P .. 't:' .. A.tenant .. ':v', A.volume)
if not id then return unsettled() or {'nothing'} end
return {'ok', id}
