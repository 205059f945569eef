"""Many machines as one: the directory that they share."""
