local policies = P .. ':policies'
if A.policy == '' then
  call('HDEL', policies, A.tenant)
elseif call('HEXISTS', policies, A.tenant) == 0 and call('HLEN', policies) >= A.max then
  return {'full'}
else
  call('HSET', policies, A.tenant, A.policy)
end
note_change('t:' .. A.tenant)
return {'ok'}
