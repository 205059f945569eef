"""Settings of what makes sandboxes."""
