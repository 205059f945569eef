"""Text from untrusted sources: checks for names and values, and safe printing."""
