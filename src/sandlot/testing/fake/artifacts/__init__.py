"""The fake's artifacts: files that stay after their sessions, in memory."""
