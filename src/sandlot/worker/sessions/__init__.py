"""Sessions: how the worker opens, uses, loses and ends them."""
