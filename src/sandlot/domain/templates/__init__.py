"""Templates that clients have built: what is asked for, and what becomes of it."""
