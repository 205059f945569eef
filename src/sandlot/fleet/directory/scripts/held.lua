local answer = call('SSCAN', P .. 'w:' .. A.worker .. ':s', A.after, 'COUNT', 500)
return {'ok', answer[1], answer[2]}
