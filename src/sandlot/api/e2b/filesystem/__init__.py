"""The Connect service ``filesystem.Filesystem``: folders and changes."""
