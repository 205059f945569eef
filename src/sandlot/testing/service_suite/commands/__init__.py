"""Cases for commands: how they start, what they print, how they end, and what a policy says about them."""
