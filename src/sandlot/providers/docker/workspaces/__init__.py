"""Where Docker sandboxes keep their workspaces: on btrfs, or in Docker volumes."""
