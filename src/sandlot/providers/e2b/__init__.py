"""Sandboxes at E2B, with our own agent inside. See README.md."""

from sandlot.providers.e2b.account import E2BAccount
from sandlot.providers.e2b.provider import E2BProvider

__all__ = ["E2BAccount", "E2BProvider"]
