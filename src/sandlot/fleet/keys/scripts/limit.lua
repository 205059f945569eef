local limits = P .. ':limits'
if A.limits == '' then
  call('HDEL', limits, A.tenant)
elseif call('HEXISTS', limits, A.tenant) == 0 and call('HLEN', limits) >= A.max then
  return {'full'}
else
  call('HSET', limits, A.tenant, A.limits)
end
note_change('t:' .. A.tenant)
return {'ok'}
