"""What is said over HTTP about artifacts."""
