"""The network of the fake's sandboxes."""
