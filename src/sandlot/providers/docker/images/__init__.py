"""Makes any image usable for sandboxes."""
