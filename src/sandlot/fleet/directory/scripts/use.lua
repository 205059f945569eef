local use = call('HMGET', P .. 'use:' .. A.holder, 'n', 'c', 'm')
return {'ok', tonumber(use[1]) or 0, tonumber(use[2]) or 0, tonumber(use[3]) or 0}
