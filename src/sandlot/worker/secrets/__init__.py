"""The worker's named secrets: kept in its data folder, and nowhere else."""
