"""Event ids, and cursors: how far a reader has read the history of each worker.

A worker gives its events growing times, in microseconds, and its tag. So an id says where an event comes
from, and ids of different workers sort by time as well as the workers' clocks agree.

Clocks differ, and workers may be away for a while. So a cursor is not a single time. It is a time up to which
all workers were read, and the position of each worker that was read further or that did not answer.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from sandlot.domain.errors import InvalidRequest

US: Final = 1_000_000
# How much later than another worker's a worker's events may show up and still be read: more than clocks
# differ, and than a batch takes to be written.
SETTLED_US: Final = 30 * US
# Workers in one cursor. Only those that had events in the last 30 s, or that are away, are in it.
MAX_WORKERS: Final = 1000
_ID: Final = re.compile(r"evt_([0-9a-f]{14})_([0-9a-f]{8})")
_CURSOR: Final = re.compile(rf"([0-9a-f]{{14}})((?:-[0-9a-f]{{22}}){{0,{MAX_WORKERS}}})")


def worker_tag(worker_id: str) -> str:
    return hashlib.sha256(worker_id.encode()).hexdigest()[:8]


def event_id(time_us: int, tag: str) -> str:
    return f"evt_{time_us:014x}_{tag}"


def parse_event_id(text: str) -> tuple[int, str]:
    """The event's time in microseconds, and the tag of its worker."""
    match = _ID.fullmatch(text)
    if match is None:
        raise InvalidRequest(f"{text!r:.80} is not an event's id.")
    return int(match[1], 16), match[2]


class EventTimes:
    """Gives each event of a worker a later time than the one before, whatever the clock does."""

    def __init__(self, last_us: int = 0) -> None:
        self.last_us = last_us

    def next(self, now: float) -> int:
        self.last_us = max(self.last_us + 1, int(now * US))
        return self.last_us


@dataclass(frozen=True, slots=True)
class Position:
    """How far a reader has read.

    ``floor_us``: up to here all workers were read. ``read_us``: by tag, the workers of which more or less was
    read.
    """

    floor_us: int = 0
    read_us: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str | None) -> Position:
        if text is None:
            return cls()
        match = _CURSOR.fullmatch(text)
        if match is None:
            raise InvalidRequest(
                f"{text!r:.80} is not a page cursor. Pass the 'next' value of the previous page."
            )
        entries = match[2].split("-")[1:]
        return cls(int(match[1], 16), {entry[:8]: int(entry[8:], 16) for entry in entries})

    def __str__(self) -> str:
        entries = "".join(f"-{tag}{time_us:014x}" for tag, time_us in sorted(self.read_us.items()))
        return f"{self.floor_us:014x}{entries}"

    def of(self, tag: str) -> int:
        """Up to which time this worker was read, in microseconds."""
        return self.read_us.get(tag, self.floor_us)

    def read_to(self, tag: str, time_us: int) -> Position:
        """The position after one worker was read up to a time."""
        if time_us <= self.of(tag):
            return self
        floor_us = max(self.floor_us, time_us - SETTLED_US)
        kept = {
            other: at
            for other, at in self.read_us.items()
            # Below the old floor stand workers that are away: they are not read yet.
            if at > floor_us or at <= self.floor_us
        }
        return Position(floor_us, {**kept, tag: time_us})

    def after(self, ids: Iterable[str]) -> Position:
        """The position after events were read, each worker's in order."""
        last_us: dict[str, int] = {}
        for time_us, tag in map(parse_event_id, ids):
            last_us[tag] = max(time_us, last_us.get(tag, 0))
        position = self
        for tag, time_us in sorted(last_us.items(), key=lambda read: read[1]):
            position = position.read_to(tag, time_us)
        return position

    def settled(self, before: Position, *, away: Collection[str], unfinished: Collection[str]) -> Position:
        """This position, without the workers that were read as far as they have events.

        ``before``: where the reading began. ``away``: workers that did not answer, and stay where they were.
        ``unfinished``: workers that have more events.
        """
        read_us = {
            tag: at
            for tag, at in self.read_us.items()
            if tag not in away and (at > self.floor_us or tag in unfinished)
        }
        return replace(self, read_us=read_us | {tag: before.of(tag) for tag in away})
