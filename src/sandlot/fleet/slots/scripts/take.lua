-- Gives `command` a slot of each of `holders`, which are pairs with their limits, or none at all.
-- Answers with the place of the first holder that has no slot left, or 0. `released` come first: they
-- are those of commands that have ended.
release(A.released)
for i, holder in ipairs(A.holders) do
  local key = key_of(holder[1])
  redis.call('ZREMRANGEBYSCORE', key, '-inf', NOW)
  if not redis.call('ZSCORE', key, A.command) and redis.call('ZCARD', key) >= holder[2] then
    return {i}
  end
end
for _, holder in ipairs(A.holders) do hold(holder[1], A.command) end
return {0}
