"""Slots of running commands that all workers of a fleet share, in Redis."""
