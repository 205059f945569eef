"""The denials of one session: for the result of a command, and for the history. Pure.

A program can be denied thousands of times in a second. So equal denials are counted, only the latest
different ones are kept, and the history hears of each at most once in a while.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sandlot.domain.network.decisions import Denied

MAX_KEPT: Final = 100
REPORT_EVERY_S: Final = 60.0  # of equal denials
# Of different denials: a program can make up a new name for each.
REPORTS_AT_ONCE: Final = 20


@dataclass(slots=True)
class CountedDenial:
    """``count``: how often it happened. ``first_at``, ``last_at``: when, first and last."""

    denied: Denied
    first_at: float
    last_at: float
    count: int = 1
    reported_at: float = 0.0


class DenialLog:
    def __init__(self) -> None:
        self.total = 0
        self._kept: dict[tuple[str, str], CountedDenial] = {}  # in the order of the last time
        self._reports: list[float] = []  # when the latest ones were made

    def add(self, denied: Denied, now: float) -> bool:
        """Count a denial. Returns whether the history should have an event of it."""
        self.total += 1
        key = (denied.target, denied.rule)
        entry = self._kept.pop(key, None)
        fresh = entry is None or now - entry.reported_at >= REPORT_EVERY_S
        if entry is None:
            entry = CountedDenial(denied, now, now)
        else:
            entry.denied, entry.last_at, entry.count = denied, now, entry.count + 1
        self._kept[key] = entry
        if len(self._kept) > MAX_KEPT:
            del self._kept[next(iter(self._kept))]
        self._reports = [at for at in self._reports if now - at < REPORT_EVERY_S]
        if not fresh or len(self._reports) >= REPORTS_AT_ONCE:
            return False
        self._reports.append(now)
        entry.reported_at = now
        return True

    def since(self, at: float) -> tuple[Denied, ...]:
        """The different denials since a time, oldest first. A command's are those since it began."""
        return tuple(entry.denied for entry in self._kept.values() if entry.last_at >= at)
