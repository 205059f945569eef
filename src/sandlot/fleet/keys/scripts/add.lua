local before = call('HGET', P, A.id)
-- The same call again, from a client that did not get the answer.
if before then return {before == A.key and 'ok' or 'exists'} end
local of_tenant = P .. ':of:' .. A.tenant
if call('ZCARD', of_tenant) >= A.max then
  local first, at
  for _, id in ipairs(call('ZRANGE', of_tenant, 0, -1)) do
    local ends = tonumber(call('ZSCORE', P .. ':ends', id))
    if ends and ends <= A.now and (not at or ends < at) then first, at = id, ends end
  end
  if not first then return {'full'} end
  drop(first, A.tenant)
end
call('HSET', P, A.id, A.key)
if A.ends then call('ZADD', P .. ':ends', A.ends, A.id) end
call('ZADD', P .. ':all', 0, A.id)
call('ZADD', of_tenant, 0, A.id)
note_change(A.id)
return {'ok'}
