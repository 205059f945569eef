"""Webhooks: events of the history, sent to addresses that tenants choose."""
