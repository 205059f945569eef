local since, numbering = A.since, name()
local last = tonumber(call('HGET', P .. ':meta', 'changes')) or 0
local everything = A.known ~= numbering or since > last
if everything then since = -1 end
local found = call('ZRANGEBYSCORE', P .. ':changed', '(' .. since, '+inf', 'WITHSCORES', 'LIMIT', 0, A.limit)
local ids, limits = {}, {}
for i = 1, #found, 2 do
  local tenant = string.match(found[i], '^t:(.*)')
  if tenant then
    limits[#limits + 1] = {tenant, call('HGET', P .. ':limits', tenant) or ''}
  else
    ids[#ids + 1] = found[i]
  end
end
local more = #found == 2 * A.limit
local mark = more and tonumber(found[#found]) or last
return {'ok', numbering, mark, everything and 1 or 0, more and 1 or 0, with_use(ids, {}), limits}
