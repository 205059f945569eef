"""How long a decision about a command takes."""
