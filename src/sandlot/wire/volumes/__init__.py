"""What is said over HTTP about volumes."""
