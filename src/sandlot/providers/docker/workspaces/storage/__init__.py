"""The btrfs file system that workspaces are on: made in a file or found, mounted, grown and examined."""
