"""The console: a web page for people, and one more client of the public API. See ``console/README.md``."""
