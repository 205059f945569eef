"""How responses are written: JSON, results, long lists, streams."""
