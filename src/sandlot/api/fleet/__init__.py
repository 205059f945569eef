"""Routes that only fleet members serve."""
