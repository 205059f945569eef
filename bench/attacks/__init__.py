"""Hostile agents beside honest sandboxes: the parts of `python -m bench.hostile`."""
