"""Cases about volumes."""
