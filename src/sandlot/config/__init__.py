"""Settings and environment recipes, read at the edge and turned into domain values."""
