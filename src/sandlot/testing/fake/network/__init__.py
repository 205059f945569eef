"""The network of the fake's sandboxes: it decides as a worker does, and leads nowhere."""
