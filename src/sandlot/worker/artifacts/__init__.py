"""Artifacts: files of sessions that the worker keeps on its own disk after the sessions have ended."""
