"""What is said over HTTP about ports and previews, and HTTP headers themselves."""
