"""Background work of the worker: recovery at start-up, expiry, removals."""
