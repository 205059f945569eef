"""A fleet's API keys, in Redis."""
