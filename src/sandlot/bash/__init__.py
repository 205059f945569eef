"""Reads bash text with tree-sitter-bash, as a list of everything that the text runs."""
