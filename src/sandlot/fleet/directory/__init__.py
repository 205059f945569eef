"""The fleet's shared record: one contract, implemented in Redis and in memory."""
