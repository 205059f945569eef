"""Code contexts of a session's sandbox."""
