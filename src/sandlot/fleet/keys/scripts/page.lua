local from = A.after and '(' .. A.after or '-'
local set = A.tenant and P .. ':of:' .. A.tenant or P .. ':all'
return with_use(call('ZRANGEBYLEX', set, from, '+', 'LIMIT', 0, A.limit), {'ok'})
