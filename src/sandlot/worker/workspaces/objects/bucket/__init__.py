"""Objects: where they are, how they are named, sealed and deduplicated."""
