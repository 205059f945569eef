-- A Redis that was restarted, or a promoted replica, may have lost the last writes, and would give their
-- numbers to other changes. So its process is part of the mark. Reading writes nothing, because workers may
-- only read.
local run = string.match(call('INFO', 'server'), 'run_id:(%x+)')
local meta = call('HMGET', P .. ':meta', 'name', 'changes')
local mark = run .. ':' .. (meta[1] or '') .. ':' .. (meta[2] or '0')
if mark == A.known then return {'same'} end
return {'ok', mark, call('HGETALL', P)}
