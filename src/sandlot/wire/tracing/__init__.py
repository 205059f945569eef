"""What makes one call recognizable in several processes: its request id and its trace."""
