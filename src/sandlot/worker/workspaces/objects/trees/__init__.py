"""Trees of files on this machine: read, or made. No path is ever followed through a link."""
