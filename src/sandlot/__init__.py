"""Sandlot: self-hosted sandboxes for AI agents."""

__version__ = "0.1.0"
