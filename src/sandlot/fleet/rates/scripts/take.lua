-- One event for each of `rates`, or for none of them if one is used up. Answers with a wait, a number
-- that is left and the time until all is left, for each rate; times in microseconds.
local at, due, used_up, answer = rate_time(), {}, false, {}
for i, rate in ipairs(A.rates) do
  local wait, left, full
  due[i], wait, left, full = gcra(rate[1], rate[2], rate[3], at)
  used_up = used_up or wait > 0
  answer[i] = {math.ceil(wait * 1000), left, math.ceil(full * 1000)}
end
if not used_up then
  for i, rate in ipairs(A.rates) do keep_due(rate[1], due[i], at) end
end
return answer
