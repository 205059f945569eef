if not is_settled() then return {'unsettled', settles - now} end
return {'ok', call('ZCARD', P .. 't:' .. A.tenant .. ':s')}
