local sessions
if A.tenant then
  sessions = call('ZCARD', P .. 't:' .. A.tenant .. ':s')
else
  sessions = call('HLEN', P .. 's') - call('ZCARD', P .. 'ended')
end
return {
  'ok', generation, is_settled() and 1 or 0, sessions, call('ZCOUNT', P .. 'r', '(' .. now, '+inf'),
}
