"""What the directory has still to be told about this worker's sessions: of each session only the latest."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from sandlot.fleet.directory import SessionEntry

# Sessions that wait to be told of; more than a worker may have, because all of them wait at once after a
# doubt. Beyond that all is forgotten, and all that there is is told anew.
MAX_WAITING = 200_000


@dataclass(frozen=True, slots=True)
class Item:
    """``entry`` None: the session never was. ``written`` is set once the directory has it."""

    session_id: str
    entry: SessionEntry | None
    written: asyncio.Event


class Outbox:
    def __init__(self, max_waiting: int = MAX_WAITING) -> None:
        self._max = max_waiting
        self._items: dict[str, Item] = {}
        self.overflowed = False

    def __len__(self) -> int:
        return len(self._items)

    def __contains__(self, session_id: str) -> bool:
        return session_id in self._items

    def put(self, entry: SessionEntry) -> asyncio.Event:
        return self._put(entry.session.id, entry)

    def put_unless_waiting(self, entry: SessionEntry) -> None:
        """What waits already is later."""
        if entry.session.id not in self._items:
            self.put(entry)

    def forget(self, session_id: str) -> None:
        self._put(session_id, None)

    def first(self, most: int) -> Sequence[Item]:
        """They stay until they are ``done``."""
        return [item for item, _ in zip(self._items.values(), range(most), strict=False)]

    def done(self, items: Collection[Item]) -> None:
        """Written, or of no interest any more. What has come for the same session since then stays."""
        for item in items:
            if self._items.get(item.session_id) is item:
                del self._items[item.session_id]
                item.written.set()

    def last(self, items: Collection[Item]) -> None:
        """They go behind the others, which they must not hold up."""
        for item in items:
            if self._items.get(item.session_id) is item:
                self._items[item.session_id] = self._items.pop(item.session_id)

    def drop(self, session_ids: Collection[str]) -> None:
        self.done([item for item in map(self._items.get, session_ids) if item is not None])

    def _put(self, session_id: str, entry: SessionEntry | None) -> asyncio.Event:
        waiting = self._items.get(session_id)
        if waiting is None and len(self._items) >= self._max:
            self.overflowed = True
            self.done(list(self._items.values()))
        written = asyncio.Event() if waiting is None else waiting.written
        self._items[session_id] = Item(session_id, entry, written)
        return written
