"""The Python SDK: sandbox sessions over HTTP or in the same process, async or blocking."""
