local ids = call('ZRANGEBYSCORE', P .. ':ends', '-inf', '(' .. A.before, 'LIMIT', 0, A.limit)
for _, id in ipairs(ids) do
  local key = call('HGET', P, id)
  drop(id, key and cjson.decode(key).tenant or '')
end
return {'ok', #ids}
