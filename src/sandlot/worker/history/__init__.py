"""The worker's history: what it records, in a SQLite file of its own."""
