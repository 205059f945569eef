"""Events on disk: a SQLite file with the newest ones, bounded by age and size.

The size is shared fairly: a full file loses the oldest events of the tenant that has the most. So nobody can
push another tenant's events out by causing many.

An event's time is its key, so a range of time is a range of the file, and each index ends with it.
"""

from __future__ import annotations

import secrets
import sqlite3
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from sandlot.domain.history.events import Detail, Event, EventKind
from sandlot.domain.history.positions import event_id, parse_event_id
from sandlot.domain.history.query import EventPage, EventQuery
from sandlot.domain.history.recorder import Subject
from sandlot.worker.store.sqlite_file import SqliteFile

FILE_NAME: Final = "history.sqlite3"
# Events that one page looks at, where no index has exactly the events asked for.
SCANNED: Final = 5000
# Events that one step of a clean-up deletes. Writes and reads get their turn in between.
DELETED_AT_ONCE: Final = 500

_EVENTS = """
CREATE TABLE events (
    time_us INTEGER PRIMARY KEY, tenant TEXT NOT NULL, session TEXT, thread TEXT, kind TEXT NOT NULL,
    rest BLOB NOT NULL
) STRICT;
CREATE INDEX events_of_tenant ON events (tenant);
CREATE INDEX events_of_kind ON events (tenant, kind);
CREATE INDEX events_of_session ON events (tenant, session) WHERE session IS NOT NULL;
CREATE INDEX events_of_thread ON events (tenant, thread) WHERE thread IS NOT NULL;
CREATE TABLE usage (tenant TEXT PRIMARY KEY, bytes INTEGER NOT NULL) STRICT;
CREATE INDEX largest ON usage (bytes);
CREATE TABLE meta (only INTEGER PRIMARY KEY CHECK (only = 1), digest_key BLOB NOT NULL) STRICT;
"""
# What a row takes beside ``rest``: a tuple, a number and four texts.
_ROW_BYTES: Final = 600
_COLUMNS: Final = "SELECT time_us, tenant, session, thread, kind, rest FROM events"

_OLD: Final = "SELECT time_us, tenant, kind FROM events WHERE time_us < ? ORDER BY time_us LIMIT ?"
_OF_LARGEST: Final = (
    "SELECT time_us, tenant, kind FROM events INDEXED BY events_of_tenant "
    "WHERE tenant = (SELECT tenant FROM usage ORDER BY bytes DESC LIMIT 1) ORDER BY time_us LIMIT ?"
)
_DELETE: Final = "DELETE FROM events WHERE time_us = ? RETURNING tenant, length(rest)"
_COUNT: Final = (
    "INSERT INTO usage VALUES (?, ?) ON CONFLICT (tenant) DO UPDATE SET bytes = bytes + excluded.bytes"
)
_ENDLESS: Final = 2**63 - 1

Row = tuple[int, str, str | None, str | None, str, bytes]
# Its time, tenant and kind.
OldEvent = tuple[int, str, str]


class _Rest(msgspec.Struct, array_like=True, frozen=True):
    """What no one searches for. New fields go to the end."""

    at: float
    details: dict[str, Detail]
    exec_id: str | None = None
    key_id: str = ""
    subject: str = ""


_REST: Final = msgspec.json.Decoder(_Rest)


@dataclass(frozen=True, slots=True)
class FileState:
    """``last_us``: the time of the newest event. ``digest_key``: for the digests of commands."""

    last_us: int
    digest_key: bytes


class HistoryStore(SqliteFile):
    def __init__(self, folder: Path, tag: str) -> None:
        super().__init__(folder / FILE_NAME, (_EVENTS,))
        self._tag = tag

    async def state(self) -> FileState:
        def work(database: sqlite3.Connection) -> FileState:
            database.execute("INSERT OR IGNORE INTO meta VALUES (1, ?)", (secrets.token_bytes(32),))
            [(last_us,)] = self._rows("SELECT coalesce(max(time_us), 0) FROM events")
            [(digest_key,)] = self._rows("SELECT digest_key FROM meta")
            return FileState(last_us, digest_key)

        return await self._transaction(work)

    async def append(self, rows: Sequence[Row]) -> int:
        """Write events. Returns how many bytes of the file are in use."""

        def work(database: sqlite3.Connection) -> int:
            # OR IGNORE: after a commit that only seemed to fail, the same events come again.
            database.executemany("INSERT OR IGNORE INTO events VALUES (?, ?, ?, ?, ?, ?)", rows)
            _count(database, ((row[1], len(row[5])) for row in rows), 1)
            return self._used_bytes()

        return await self._transaction(work)

    async def oldest(self, before_us: int, max_bytes: int) -> list[OldEvent]:
        """What to delete next, so that no events are from before a time and the file has at most
        ``max_bytes``. Empty if nothing has to be deleted.
        """

        def work() -> list[OldEvent]:
            old = self._rows(_OLD, (before_us, DELETED_AT_ONCE))
            if not old and self._used_bytes() > max_bytes:
                old = self._rows(_OF_LARGEST, (DELETED_AT_ONCE,))
            return old

        return await self._reading(work)

    async def delete(self, events: Sequence[OldEvent]) -> None:
        def work(database: sqlite3.Connection) -> None:
            deleted = [database.execute(_DELETE, (event[0],)).fetchone() for event in events]
            _count(database, (row for row in deleted if row is not None), -1)

        await self._transaction(work)

    async def page(self, tenant: str, query: EventQuery) -> EventPage:
        return await self._reading(lambda: self._page(tenant, query))

    async def open_execs(self, tenant: str, session_id: str) -> Mapping[str, Subject]:
        """The commands of a session that started, and whose end is not recorded."""
        statement = (
            f"{_COLUMNS} INDEXED BY events_of_session WHERE tenant = ? AND session = ? "
            "ORDER BY time_us DESC LIMIT ?"
        )

        def work() -> dict[str, Subject]:
            started: dict[str, Subject] = {}
            for row in reversed(self._rows(statement, (tenant, session_id, SCANNED))):
                if row[4] not in (EventKind.EXEC_STARTED, EventKind.EXEC_ENDED):
                    continue
                event = self.event_of(row)
                if event.exec_id is None:
                    continue
                started.pop(event.exec_id, None)
                if event.kind == EventKind.EXEC_STARTED:
                    started[event.exec_id] = Subject(
                        tenant, session_id, event.thread, event.exec_id, event.key_id, event.subject
                    )
            return started

        return await self._reading(work)

    # --- on the thread ------------------------------------------------------------------------

    def _used_bytes(self) -> int:
        [(pages,)] = self._rows("PRAGMA page_count")
        [(free,)] = self._rows("PRAGMA freelist_count")
        [(size,)] = self._rows("PRAGMA page_size")
        return int((pages - free) * size)

    def _page(self, tenant: str, query: EventQuery) -> EventPage:
        after_us, before_us = query.times_us(self._tag)
        times = (after_us, _ENDLESS if before_us is None else before_us)
        name = query.session_id or query.thread
        exact = not query.kinds and not (query.session_id and query.thread)
        at_most = query.limit + 1 if name is None or exact else SCANNED
        if name is not None:
            column = "session" if query.session_id else "thread"
            rows = self._range(f"events_of_{column}", f"{column} = ?", (tenant, name), times, at_most)
        elif query.kinds:
            rows = sorted(
                row
                for kind in set(query.kinds)
                for row in self._range("events_of_kind", "kind = ?", (tenant, kind.value), times, at_most)
            )[:at_most]
        else:
            rows = self._range("events_of_tenant", "TRUE", (tenant,), times, at_most)
        # Chosen by their columns before any is decoded: of many that are looked at, few may match.
        found = [
            row
            for row in rows
            if (query.session_id is None or row[2] == query.session_id)
            and (query.thread is None or row[3] == query.thread)
            and (not query.kinds or row[4] in query.kinds)
        ]
        events, more = list(map(self.event_of, found[: query.limit])), len(found) > query.limit
        position = query.position.after(event.id for event in events)
        if not more and len(rows) == SCANNED == at_most:
            more, position = True, position.read_to(self._tag, rows[-1][0])
        return EventPage(tuple(events), str(position), more)

    def _range(
        self, index: str, condition: str, values: tuple[str, ...], times: tuple[int, int], at_most: int
    ) -> list[Row]:
        # Named, because SQLite may choose another index, which it would have to read to its end.
        return self._rows(
            f"{_COLUMNS} INDEXED BY {index} WHERE tenant = ? AND {condition} AND time_us > ? "
            "AND time_us < ? ORDER BY time_us LIMIT ?",
            (*values, *times, at_most),
        )

    def event_of(self, row: Row | tuple[Any, ...]) -> Event:
        time_us, tenant, session, thread, kind, encoded = row
        rest = _REST.decode(encoded)
        return Event(
            id=event_id(time_us, self._tag),
            at=rest.at,
            kind=kind,
            tenant=tenant,
            session_id=session,
            thread=thread,
            exec_id=rest.exec_id,
            key_id=rest.key_id,
            subject=rest.subject,
            details=rest.details,
        )


def row_of(event: Event) -> Row:
    rest = _Rest(event.at, dict(event.details), event.exec_id, event.key_id, event.subject)
    return (
        parse_event_id(event.id)[0],
        event.tenant,
        event.session_id,
        event.thread,
        str(event.kind),
        msgspec.json.encode(rest),
    )


def _count(database: sqlite3.Connection, rows: Iterable[tuple[str, int]], sign: int) -> None:
    """Count rows that were added (1) or deleted (-1), by tenant and the length of ``rest``."""
    sizes: Counter[str] = Counter()
    for tenant, length in rows:
        sizes[tenant] += _ROW_BYTES + length
    database.executemany(_COUNT, [(tenant, sign * size) for tenant, size in sizes.items()])
    if sign < 0:
        database.execute("DELETE FROM usage WHERE bytes <= 0")


def size_of(row: Row) -> int:
    """About how many bytes a row takes in memory."""
    return _ROW_BYTES + len(row[5])
