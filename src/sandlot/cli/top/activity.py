"""Counts events by the minute, and finds sessions by text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from sandlot.domain.history.events import EventKind

if TYPE_CHECKING:
    from sandlot.domain.history.events import Event
    from sandlot.domain.session import Session

MINUTES: Final = 30
CREATES: Final = EventKind.SESSION_CREATED
COMMANDS: Final = EventKind.EXEC_STARTED
LOSSES: Final = EventKind.SESSION_LOST
KINDS: Final = (CREATES, COMMANDS, LOSSES)


class Activity:
    """How often things happened in each of the last ``MINUTES`` minutes."""

    def __init__(self) -> None:
        self._counts: dict[str, dict[int, int]] = {kind: {} for kind in KINDS}

    def add(self, event: Event) -> None:
        counts = self._counts.get(event.kind)
        if counts is None:
            return
        minute = int(event.at // 60)
        counts[minute] = counts.get(minute, 0) + 1
        # The latest minutes only, also in a view that stays open for days.
        for old in [known for known in counts if known <= max(counts) - MINUTES]:
            del counts[old]

    def per_minute(self, kind: str, now: float) -> list[int]:
        """The counts, oldest first. The last one is of the minute that has not ended."""
        last = int(now // 60)
        return [self._counts[kind].get(minute, 0) for minute in range(last - MINUTES + 1, last + 1)]


def matches(session: Session, text: str) -> bool:
    """Whether the id, thread, environment, state or metadata of a session contain each word of ``text``."""
    about = " ".join(
        [session.id, session.thread or "", session.environment, session.state, *_flat(session.metadata)]
    ).lower()
    return all(word in about for word in text.lower().split())


def _flat(metadata: Mapping[str, str]) -> list[str]:
    return [part for pair in metadata.items() for part in pair]
