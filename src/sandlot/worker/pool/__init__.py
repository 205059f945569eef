"""Where sessions get their sandboxes: from a warm pool, or made for the request."""
