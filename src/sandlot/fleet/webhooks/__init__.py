"""The webhooks of a fleet, in Redis."""
