"""What an attempt to deliver came to, and when the next one is made. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from sandlot.domain.text.printable import escape_unprintable

MAX_ERROR_CHARS: Final = 300


class Verdict(StrEnum):
    """delivered: the receiver accepted it. failed: it did not. gone: it wants no more of this webhook."""

    DELIVERED = "delivered"
    FAILED = "failed"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class Outcome:
    """``error``: why it failed, for the webhook's owner."""

    verdict: Verdict
    error: str = ""


def outcome_of(status: int, location: str = "") -> Outcome:
    """What a receiver's answer means. ``location``: where it redirects to, if it does."""
    if 200 <= status < 300:
        return Outcome(Verdict.DELIVERED)
    if status == 410:
        return Outcome(Verdict.GONE, "The receiver answered 410: it is gone.")
    if 300 <= status < 400:
        return failed(
            f"The receiver answered {status} and redirects to {location or 'nowhere'}. Redirects are not "
            "followed: create a webhook for the final address."
        )
    return failed(f"The receiver answered {status}.")


def failed(error: str) -> Outcome:
    return Outcome(Verdict.FAILED, escape_unprintable(error)[:MAX_ERROR_CHARS])


@dataclass(frozen=True, slots=True)
class Schedule:
    """How often a delivery is tried, and the seconds between two attempts: about 3 hours by default."""

    attempts: int = 8
    first_s: float = 5.0
    factor: float = 5.0
    longest_s: float = 3600.0

    def delay_s(self, attempts: int, chance: float) -> float | None:
        """Seconds until the next attempt after so many failed ones. None: give up.

        ``chance``: a random number from 0 to 1. It spreads the attempts of webhooks that fail together.
        """
        if attempts >= self.attempts:
            return None
        return min(self.first_s * self.factor ** (attempts - 1), self.longest_s) * (0.8 + 0.4 * chance)
