"""The worker's records: its sandboxes, and which session each one serves.

A machine that crashes may lose the last commits, but then its sandboxes are gone too. The file
contains sessions' environment variables, so only its owner can read it.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from sandlot.domain.errors import Conflict, SandlotError
from sandlot.domain.network.session_egress import Grant
from sandlot.domain.network.status import Forward
from sandlot.domain.recovery import Purpose, SandboxRecord
from sandlot.domain.session import Session, SessionState
from sandlot.worker.store.sqlite_file import SqliteFile

_RECORDS = """
CREATE TABLE IF NOT EXISTS sandboxes (
    id TEXT PRIMARY KEY, environment TEXT NOT NULL, purpose TEXT NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS sessions (
    id TEXT PRIMARY KEY, tenant TEXT NOT NULL, thread TEXT, state TEXT NOT NULL, ended_at REAL,
    idempotency_key TEXT, request_digest TEXT, session BLOB NOT NULL, env BLOB NOT NULL
) STRICT;
CREATE UNIQUE INDEX IF NOT EXISTS one_session_per_thread
    ON sessions (tenant, thread) WHERE state != 'ended' AND thread IS NOT NULL;
CREATE UNIQUE INDEX IF NOT EXISTS one_session_per_key
    ON sessions (tenant, idempotency_key) WHERE idempotency_key IS NOT NULL;
CREATE INDEX IF NOT EXISTS ended_sessions ON sessions (ended_at) WHERE ended_at IS NOT NULL;
"""
_OWNER = (
    "CREATE TABLE IF NOT EXISTS owner (only INTEGER PRIMARY KEY CHECK (only = 1), id TEXT NOT NULL) STRICT"
)
# What was added to sessions' networks while they lived. A table of its own, so that version 0.2 can still use
# the file.
_NETWORKS = "CREATE TABLE IF NOT EXISTS networks (session TEXT PRIMARY KEY, network BLOB NOT NULL) STRICT"
_MIGRATIONS = (_RECORDS,)
SCHEMA_VERSION = len(_MIGRATIONS)


@dataclass(frozen=True, slots=True)
class SessionRecord:
    """A session with data that only the worker needs: its variables, how it was requested, and what was added
    to its network.
    """

    session: Session
    env: Mapping[str, str] = field(default_factory=dict)
    idempotency_key: str | None = None
    request_digest: str = ""
    grants: tuple[Grant, ...] = ()
    forwards: tuple[Forward, ...] = ()


class _Network(msgspec.Struct, frozen=True, omit_defaults=True):
    grants: tuple[Grant, ...] = ()
    forwards: tuple[Forward, ...] = ()


def owner_of(path: Path) -> str | None:
    """The worker whose memory this file is; None if there is none, or none that can be read."""
    if not path.exists():
        return None
    try:
        with contextlib.closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as database:
            row = database.execute("SELECT id FROM owner").fetchone()
    except sqlite3.Error:
        return None
    return None if row is None else str(row[0])


class Store(SqliteFile):
    """The worker's database.

    ``owner``: the id of the worker; its sandboxes are labelled with it.
    """

    def __init__(self, path: Path, owner: str) -> None:
        super().__init__(path, _MIGRATIONS)
        self._owner = owner
        self._scrubbed = True  # whether the log is free of ended sessions' data

    # --- reading ------------------------------------------------------------------------------

    async def sessions(self) -> Sequence[SessionRecord]:
        """All recorded sessions, including ended ones."""
        return await self._on_thread(
            lambda: [
                SessionRecord(
                    msgspec.json.decode(session, type=Session),
                    msgspec.json.decode(env, type=dict[str, str]),
                    key,
                    digest or "",
                    *_network_of(network),
                )
                for session, env, key, digest, network in self._rows(
                    "SELECT sessions.session, env, idempotency_key, request_digest, network FROM sessions "
                    "LEFT JOIN networks ON networks.session = sessions.id"
                )
            ]
        )

    async def sandboxes(self) -> Sequence[SandboxRecord]:
        return await self._on_thread(
            lambda: [
                SandboxRecord(sandbox_id, environment, Purpose(purpose))
                for sandbox_id, environment, purpose in self._rows(
                    "SELECT id, environment, purpose FROM sandboxes"
                )
            ]
        )

    # --- writing ------------------------------------------------------------------------------

    async def add_sandbox(self, record: SandboxRecord) -> None:
        """Record a sandbox before it is made, so that a dying worker leaves it on record."""
        await self._write([_sandbox_row(record)])

    async def forget_sandbox(self, sandbox_id: str) -> None:
        await self._write([("DELETE FROM sandboxes WHERE id = ?", (sandbox_id,))])

    async def claim(self, record: SessionRecord, sandbox: SandboxRecord) -> None:
        """Record that the sandbox belongs to the session. Both records are written, or neither.

        A new sandbox changes nothing of what was added to the session's network.
        """
        await self._write([_sandbox_row(sandbox), _session_row(record)])

    async def save(self, records: Iterable[SessionRecord], removing: SandboxRecord | None = None) -> None:
        """Write sessions and, in the same transaction, the sandbox that must be removed as a
        result.
        """
        records = list(records)
        statements = [row for record in records for row in _session_rows(record)]
        self._scrubbed &= all(record.session.state is not SessionState.ENDED for record in records)
        if removing is not None:
            statements.append(_sandbox_row(removing))
        await self._write(statements)

    async def save_activity(self, sessions: Iterable[Session]) -> None:
        """Write only the sessions. Their variables may be large and have not changed."""
        await self._write(
            [
                ("UPDATE sessions SET session = ? WHERE id = ?", (msgspec.json.encode(session), session.id))
                for session in sessions
            ]
        )

    async def forget_session(self, session_id: str, removing: SandboxRecord | None = None) -> None:
        """Delete a session that is not ours, and record the sandbox that must be removed."""
        self._scrubbed = False
        statements: list[tuple[str, tuple[object, ...]]] = [
            ("DELETE FROM sessions WHERE id = ?", (session_id,)),
            ("DELETE FROM networks WHERE session = ?", (session_id,)),
        ]
        if removing is not None:
            statements.append(_sandbox_row(removing))
        await self._write(statements)

    async def forget_ended(self, before: float, keep: int) -> None:
        """Delete sessions that ended before a time, and all but the ``keep`` newest ended ones."""
        newest = (
            "SELECT ended_at FROM sessions WHERE ended_at IS NOT NULL ORDER BY ended_at DESC LIMIT 1 OFFSET ?"
        )
        await self._write(
            [
                ("DELETE FROM sessions WHERE ended_at < ?", (before,)),
                (f"DELETE FROM sessions WHERE ended_at <= ({newest})", (keep,)),  # noqa: S608  no input in it
            ]
        )

    async def scrub(self) -> None:
        """Empty the write-ahead log, which may still hold variables of ended sessions."""
        if not self._scrubbed:
            self._scrubbed = True
            await self._on_thread(self._scrub)

    # --- on the thread ------------------------------------------------------------------------

    def _check(self, database: sqlite3.Connection) -> None:
        """Refuse to open another worker's database. With another id a worker would find none of its
        sandboxes, report them as lost, and leave them running forever.
        """
        database.execute(_OWNER)  # the first files of version 1 do not have it
        database.execute(_NETWORKS)
        known = database.execute("SELECT id FROM owner").fetchone()
        if known == (self._owner,):
            return
        if known is not None and database.execute("SELECT 1 FROM sandboxes LIMIT 1").fetchone():
            raise Conflict(
                f"{self._path} belongs to worker {known[0]!r}, whose sandboxes carry that name. Set "
                f"SANDLOT_WORKER_ID={known[0]}, or give {self._owner!r} its own folder with "
                "SANDLOT_DATA_DIR."
            )
        database.execute("INSERT OR REPLACE INTO owner VALUES (1, ?)", (self._owner,))

    def _scrub(self) -> None:
        assert self._database is not None
        try:
            self._database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        except sqlite3.Error as error:
            self._scrubbed = False
            raise self._problem(error) from error

    def _duplicate(self, error: sqlite3.IntegrityError) -> SandlotError:
        return Conflict(
            "This thread or idempotency key already has another session. Retry to get that session."
        )


def _sandbox_row(record: SandboxRecord) -> tuple[str, tuple[object, ...]]:
    return (
        "INSERT INTO sandboxes VALUES (?, ?, ?) ON CONFLICT (id) DO UPDATE SET purpose = excluded.purpose",
        (record.id, record.environment, record.purpose.value),
    )


def _session_rows(record: SessionRecord) -> list[tuple[str, tuple[object, ...]]]:
    """Most sessions have nothing in the second table."""
    session_id = record.session.id
    if record.session.state is SessionState.ENDED or not (record.grants or record.forwards):
        network: tuple[str, tuple[object, ...]] = ("DELETE FROM networks WHERE session = ?", (session_id,))
    else:
        encoded = msgspec.json.encode(_Network(record.grants, record.forwards))
        network = ("INSERT OR REPLACE INTO networks VALUES (?, ?)", (session_id, encoded))
    return [_session_row(record), network]


def _session_row(record: SessionRecord) -> tuple[str, tuple[object, ...]]:
    session = record.session
    ended = session.state is SessionState.ENDED
    return (
        # Not OR REPLACE: that would silently delete another session of the same thread.
        "INSERT INTO sessions VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET "
        "state = excluded.state, ended_at = excluded.ended_at, session = excluded.session, "
        "env = excluded.env",
        (
            session.id,
            session.tenant,
            session.thread,
            session.state.value,
            session.ended_at,
            record.idempotency_key,
            record.request_digest,
            msgspec.json.encode(session),
            # An ended session no longer needs its secrets.
            msgspec.json.encode({} if ended else dict(record.env)),
        ),
    )


def _network_of(stored: bytes | None) -> tuple[tuple[Grant, ...], tuple[Forward, ...]]:
    if stored is None:
        return (), ()
    network = msgspec.json.decode(stored, type=_Network)
    return network.grants, network.forwards
