local index = P .. 't:' .. A.tenant .. ':s'
local seen = {}
local answer = {'ok', 0}
local orphans = {}

local function add(id)
  local value = call('HGET', P .. 's', id)
  if not value then
    orphans[#orphans + 1] = id
    return
  end
  local name = cmsgpack.unpack(value)[WORKER]
  seen[name] = seen[name] or worker(name)
  local w = seen[name]
  answer[#answer + 1] = {id, value, w.id, w.url, w.epoch, w.state, w.over}
end

-- Whether a session is at the cursor or before it.
local function passed(id, score)
  if not A.after then return false end
  local created, after = tonumber(score), tonumber(A.after)
  return created < after or created == after and id <= A.after_id
end

if A.thread then
  local mark = call('HGET', P .. 't:' .. A.tenant .. ':th', A.thread)
  local id = mark and string.sub(mark, 1, 1) == 's' and string.sub(mark, 2)
  local score = id and call('ZSCORE', index, id)
  if score then
    if not passed(id, score) then add(id) end
    return answer
  end
end
local refusal = unsettled()
if refusal then return refusal end
if A.thread then return answer end
local rank = A.after and call('ZCOUNT', index, '-inf', '(' .. A.after) or 0
while #answer - 2 < A.limit do
  local ids = call('ZRANGE', index, rank, rank + A.limit, 'WITHSCORES')
  if #ids == 0 then break end
  for i = 1, #ids, 2 do
    rank = rank + 1
    if not passed(ids[i], ids[i + 1]) then
      add(ids[i])
      if #answer - 2 == A.limit then break end
    end
  end
end
answer[2] = call('ZCARD', index) > rank and 1 or 0
for _, id in ipairs(orphans) do call('ZREM', index, id) end
return answer
