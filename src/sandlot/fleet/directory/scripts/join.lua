-- None of our keys has a TTL, except for rates, which may be lost. So only the allkeys policies can
-- evict one, and no member would notice.
local policy = string.match(call('INFO', 'memory'), 'maxmemory_policy:(%S+)') or ''
if string.sub(policy, 1, 7) == 'allkeys' then return {'evicting', policy} end
notice_restart()
local key = P .. 'w:' .. A.worker
local w = call('HMGET', key, 'url', 'token', 'until')
local last = tonumber(call('HGET', P .. 'epochs', A.worker)) or 0
-- A process with a later epoch than the directory knows has replaced the recorded process.
if w[2] and w[2] ~= A.token and now < tonumber(w[3]) and A.last_epoch <= last then
  return {'taken', w[1], tonumber(w[3]) - now}
end
local epoch = math.max(last, A.last_epoch) + 1
withdraw(A.worker)
call('HDEL', key, 'report', 'environments', 'forgot')
call(
  'HSET', key, 'url', A.url, 'version', A.version, 'epoch', epoch, 'token', A.token, 'until', now + A.lease,
  'writes', 0
)
call('HSET', P .. 'epochs', A.worker, epoch)
call('ZADD', P .. 'workers', now + A.lease, A.worker)
keep_settling()
return {'ok', epoch, generation}
