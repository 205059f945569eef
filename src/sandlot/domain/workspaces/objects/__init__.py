"""Snapshots in object storage: rules and limits."""
