"""Commands that run code in contexts, and list and control contexts."""
