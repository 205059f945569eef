"""Connections to one server: pools, headers, errors."""
