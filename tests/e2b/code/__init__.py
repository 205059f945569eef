"""E2B's own SDKs, unmodified, against our server."""
