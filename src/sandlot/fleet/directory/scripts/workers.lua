local answer = {'ok'}
local ids = call('ZRANGE', P .. 'workers', 0, -1)
for _, id in ipairs(ids) do
  local w = worker(id)
  local more = call('HMGET', P .. 'w:' .. id, 'version', 'report')
  answer[#answer + 1] = {
    id, w.url, w.epoch, w.state, w.over, w.lease_end - now, more[1], more[2] or '', call('SCARD', P .. 'w:' .. id .. ':s'),
  }
end
return answer
