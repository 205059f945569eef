"""The SDK's part for workspaces: snapshots, forks and hibernation."""
