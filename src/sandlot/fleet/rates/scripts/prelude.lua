-- Prepended to every script, after `gcra.lua`. KEYS[1] is the prefix of all keys of a cell. ARGV[1]
-- holds the arguments by name.
local A = cmsgpack.unpack(ARGV[1])
