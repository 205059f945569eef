"""Trees of files on this machine: walked and read. No path is ever followed through a link."""
