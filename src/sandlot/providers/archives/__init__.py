"""Snapshots as archives, tar in zstd: packed from a tree, and unpacked into one, without trusting either."""
