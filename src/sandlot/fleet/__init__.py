"""Run several machines as one fleet: the shared directory, coordinators and worker membership."""
