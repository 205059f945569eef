"""Volumes in the SDK: files that sessions share."""
