"""Requests of programs: read from a connection inside, and passed on to a host."""
