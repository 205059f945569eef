"""REST: sandboxes, snapshots and templates."""
