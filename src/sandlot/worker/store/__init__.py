"""The worker's records of sandboxes and sessions, on disk in SQLite."""
