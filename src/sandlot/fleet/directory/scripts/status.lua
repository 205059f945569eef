return {
  'ok', generation, is_settled() and 1 or 0, call('HLEN', P .. 's') - call('ZCARD', P .. 'ended'),
  call('ZCOUNT', P .. 'r', '(' .. now, '+inf'),
}
