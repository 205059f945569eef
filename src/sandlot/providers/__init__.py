"""What makes sandboxes, behind one contract (base.py)."""
