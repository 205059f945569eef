"""Routes that only members of a fleet serve: the coordinator's for operators, the worker's for members."""
