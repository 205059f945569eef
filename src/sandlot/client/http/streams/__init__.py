"""The events of an exec over HTTP."""
