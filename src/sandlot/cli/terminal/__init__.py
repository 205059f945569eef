"""Input and output of commands, on a terminal or in a pipe."""
