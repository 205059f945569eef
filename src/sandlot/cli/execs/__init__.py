"""Commands that were started before: list them, read their output, kill them."""
