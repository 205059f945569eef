"""Commands for artifacts."""
