"""Sends events of the worker's history to the receivers that tenants name."""
