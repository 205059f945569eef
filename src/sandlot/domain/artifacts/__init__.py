"""Artifacts: files that stay after their session has ended. Values, rules and the contract."""
