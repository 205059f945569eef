"""Secrets that sandboxes use and never have: where each may go, for whom, and through which gateways."""
