"""Workspaces and snapshots: which session has which files."""
