"""Hostile agents beside honest sandboxes: what `python -m bench.hostile` is made of."""
