"""Workspaces and their snapshots: values, rules and the contract."""
