"""Builds of templates, without an engine."""
