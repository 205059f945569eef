"""Commands for workspaces: snapshots and storage."""
