"""Artifacts in the SDK: files that stay after their sessions."""
