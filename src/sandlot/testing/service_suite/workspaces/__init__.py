"""Cases about workspaces: files that outlive sandboxes, snapshots, steps, forks and hibernation."""
