"""Templates that clients build."""
