"""Adds secrets to requests of sandboxes, by gateways and by reading TLS, and keeps them out of answers."""
