"""The history: an append-only record of what happened to sessions, commands, files and keys."""
