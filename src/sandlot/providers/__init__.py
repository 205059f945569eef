"""Providers make sandboxes. All of them implement one contract (base.py)."""
