"""Previews: what programs in sandboxes serve, for people with a browser. See ``api/README.md``."""
