"""Volumes on btrfs."""
