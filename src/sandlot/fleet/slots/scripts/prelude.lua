-- Prepended to every script. KEYS[1] is the prefix of all keys of a cell. ARGV[1] holds the arguments
-- by name.
--
-- <prefix>slots:<holder>     sorted set: the commands that have a slot of the holder, each with its
--                            worker, by the time at which the slot ends unless its worker renews it
local A = cmsgpack.unpack(ARGV[1])

local t = redis.call('TIME')
local NOW = t[1] * 1000 + math.floor(t[2] / 1000)

local function key_of(holder) return KEYS[1] .. 'slots:' .. holder end

local function hold(holder, command)
  redis.call('ZADD', key_of(holder), NOW + A.life_ms, command)
  redis.call('PEXPIRE', key_of(holder), A.life_ms)
end

-- `slots` is a list of pairs of a holder and a command.
local function release(slots)
  for _, slot in ipairs(slots) do redis.call('ZREM', key_of(slot[1]), slot[2]) end
end
