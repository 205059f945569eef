"""The classic clients, built on the current SDK."""
