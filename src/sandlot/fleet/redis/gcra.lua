-- Prepended to scripts that count events against a rate. The twin of `domain/callers/rates.py`, which
-- explains it. Times are in milliseconds. A number of milliseconds since 1970 has room for a few
-- digits behind its point, hence SLACK.
--
-- <prefix>rate:<name>        string: the due time of a rate; gone once it is past

local SLACK = 0.001

-- The time of Redis itself, with its fraction.
local function rate_time()
  local t = redis.call('TIME')
  return t[1] * 1000 + t[2] / 1000
end

-- The due time after one more event, and what is left: the wait (0 if the event is allowed), how many
-- more events are allowed, and the time until the whole burst is.
local function gcra(name, interval, burst, at)
  local span = burst * interval
  local due = tonumber(redis.call('GET', KEYS[1] .. 'rate:' .. name)) or at
  due = math.min(math.max(due, at), at + span)
  local after = due + interval
  local wait = after - span - at
  if wait > SLACK then return due, wait, 0, due - at end
  return after, 0, math.floor((at + span - after + SLACK) / interval), after - at
end

local function keep_due(name, due, at)
  redis.call('SET', KEYS[1] .. 'rate:' .. name, string.format('%.4f', due), 'PX', math.ceil(due - at) + 1)
end
