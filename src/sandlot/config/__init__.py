"""Settings and environment recipes, read at the edge and converted to domain values."""
