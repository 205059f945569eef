"""Volumes: where they are, which session writes to them, and how sandboxes get them."""
