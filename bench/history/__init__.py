"""The history: what it costs a command, how fast it answers, and that it stays small."""
