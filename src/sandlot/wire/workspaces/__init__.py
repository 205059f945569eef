"""What is said over HTTP about workspaces and snapshots."""
