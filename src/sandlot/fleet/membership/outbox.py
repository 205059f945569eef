"""Sessions that wait to be written to the directory: only the latest state of each session."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from sandlot.fleet.directory.contract import SessionEntry

# The most sessions that may wait. This is more than a worker may have, because all its sessions
# wait at once after a lost contact. Beyond it the outbox is emptied, and all sessions are recorded
# again.
MAX_WAITING = 200_000


@dataclass(frozen=True, slots=True)
class Item:
    """A session to write. ``entry`` None: forget the session, because it was never created.

    ``written`` is set once the directory has it.
    """

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
        """Add an entry, unless one for the same session waits. The waiting one is newer."""
        if entry.session.id not in self._items:
            self.put(entry)

    def forget(self, session_id: str) -> None:
        self._put(session_id, None)

    def first(self, most: int) -> Sequence[Item]:
        """Return up to ``most`` items. They stay in the outbox until ``done``."""
        return [item for item, _ in zip(self._items.values(), range(most), strict=False)]

    def done(self, items: Collection[Item]) -> None:
        """Remove items that are written or obsolete. A newer item of the same session stays."""
        for item in items:
            if self._items.get(item.session_id) is item:
                del self._items[item.session_id]
                item.written.set()

    def move_to_end(self, items: Collection[Item]) -> None:
        """Move items behind the others, so that they do not hold the others up."""
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
