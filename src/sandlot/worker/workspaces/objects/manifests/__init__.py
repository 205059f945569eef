"""Manifests: what a snapshot has, and in which chunks."""
