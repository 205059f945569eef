"""How the fleet calls Redis: connections, scripts, and one deadline per call."""
