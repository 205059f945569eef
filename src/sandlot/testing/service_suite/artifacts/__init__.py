"""Cases about artifacts."""
