-- Reading the run id costs as much as the rest of this script, and a restart takes longer than a
-- clock step. So check only when the clock has stepped.
if stepped then notice_restart() end
local refusal = fenced()
if refusal then return refusal end
expire()
local key = P .. 'w:' .. A.worker
local before = call('HGET', key, 'environments') or ''
local promised = {}
local pairs_of = call('HGETALL', key .. ':p')
for i = 1, #pairs_of, 2 do promised[pairs_of[i]] = tonumber(pairs_of[i + 1]) end

local offered, names = {}, {}
if not A.draining then
  for environment, room in pairs(A.room) do
    -- The report may be older than the last reservations, so do not offer reserved room again.
    local free = math.max(0, room[2] - (promised['f:' .. environment] or 0))
    local warm = math.min(free, math.max(0, room[1] - (promised['w:' .. environment] or 0)))
    offer(environment, A.worker, free, warm)
    offered[environment] = true
    names[#names + 1] = environment
  end
end
for environment in string.gmatch(before, '%S+') do
  if not offered[environment] then unoffer(environment, A.worker) end
end
call('HSET', key, 'until', now + A.lease, 'report', A.report, 'environments', table.concat(names, ' '))
call('ZADD', P .. 'workers', now + A.lease, A.worker)
if not A.complete then keep_settling() end
return {'ok', generation, tonumber(call('HGET', key, 'writes'))}
