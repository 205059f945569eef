"""E2B's API on the same service, for E2B's own SDKs."""
