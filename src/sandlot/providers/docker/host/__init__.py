"""A sandbox's resources on the host: its folder, its user and its workspace."""
