"""Which kind of loss a reason in words is. A metric needs a few kinds, and people need the words."""

from __future__ import annotations

from typing import Final

_CAUSES: Final = {
    "the sandbox's container ended": "ended",
    "the sandbox's container is gone": "gone",
    "its container was": "gone",
    "it did not answer": "unresponsive",
    "protocol abuse": "quarantined",
    "the sandbox's agent broke the protocol": "quarantined",
    "the sandbox's agent failed the handshake": "quarantined",
    "the sandbox's agent has ended": "ended",
    "E2B has ended the sandbox": "ended",
}


def cause_of(reason: str) -> str:
    """A value of the label ``cause`` of the metric ``sandlot_sandboxes_lost_total``."""
    return next((cause for words, cause in _CAUSES.items() if reason.startswith(words)), "other")
