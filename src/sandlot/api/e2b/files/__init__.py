"""Contents of files, and links to them."""
