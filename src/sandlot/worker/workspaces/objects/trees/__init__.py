"""Trees of files on this machine: walked and read, or made. No path is ever followed through a link."""
