"""The fake's workspaces: files that outlive computers, their snapshots, and what gives a session both."""
