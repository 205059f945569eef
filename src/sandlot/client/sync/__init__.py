"""The same names without await: a thin facade over the async classes, never a second implementation."""
