-- Prepended to every script. KEYS[1] is the prefix of all keys of a cell. ARGV[1] holds the
-- arguments by name. Answers are arrays, and their first element names the outcome.
--
-- <prefix>webhooks          hash: id -> the webhook as JSON, with its secret
-- <prefix>webhooks:count    hash: tenant -> how many it has
-- <prefix>webhooks:meta     hash: name, a random one for this set of webhooks; changes, how many there were
local P = KEYS[1] .. 'webhooks'
local A = cmsgpack.unpack(ARGV[1])
local call = redis.call

local function note_change()
  call('HSETNX', P .. ':meta', 'name', A.fresh)
  call('HINCRBY', P .. ':meta', 'changes', 1)
end
