"""Builds images by steps, with the engine."""
