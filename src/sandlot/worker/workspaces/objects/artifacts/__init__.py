"""Artifacts in object storage: their records, how they are saved, found and read."""
