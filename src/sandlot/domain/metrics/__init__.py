"""What Sandlot counts and measures: a table of metrics, and the figures of one process."""
