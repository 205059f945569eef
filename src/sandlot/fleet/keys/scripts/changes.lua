local since, numbering = A.since, name()
local last = tonumber(call('HGET', P .. ':meta', 'changes')) or 0
local everything = A.known ~= numbering or since > last
if everything then since = -1 end
local found = call('ZRANGEBYSCORE', P .. ':changed', '(' .. since, '+inf', 'WITHSCORES', 'LIMIT', 0, A.limit)
local ids, mark = {}, last
for i = 1, #found, 2 do
  ids[#ids + 1] = found[i]
  if #ids == A.limit then mark = tonumber(found[i + 1]) end
end
return with_use(ids, {'ok', numbering, mark, everything and 1 or 0})
