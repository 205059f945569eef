"""Rates that all processes of a fleet share, in Redis."""
