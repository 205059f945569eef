local since, numbering, at_first = A.since, name()
local last = tonumber(call('HGET', P .. ':meta', 'changes')) or 0
-- Whoever has asked before the first change knows that there was nothing.
local goes_on = A.known == numbering or A.known == at_first and since == 0
local everything = not goes_on or since > last
if everything then since = -1 end
local found = call('ZRANGEBYSCORE', P .. ':changed', '(' .. since, '+inf', 'WITHSCORES', 'LIMIT', 0, A.limit)
local ids, tenants = {}, {}
for i = 1, #found, 2 do
  local tenant = string.match(found[i], '^t:(.*)')
  if tenant then
    local limits = call('HGET', P .. ':limits', tenant) or ''
    tenants[#tenants + 1] = {tenant, limits, call('HGET', P .. ':policies', tenant) or ''}
  else
    ids[#ids + 1] = found[i]
  end
end
local more = #found == 2 * A.limit
local mark = more and tonumber(found[#found]) or last
return {'ok', numbering, mark, everything and 1 or 0, more and 1 or 0, with_use(ids, {}), tenants}
