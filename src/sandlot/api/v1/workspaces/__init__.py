"""The routes of workspaces and snapshots."""
