"""The calls that a coordinator passes on: to a session's worker, or to the worker that has a snapshot."""
