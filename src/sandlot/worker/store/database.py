"""The worker's records: its sandboxes, and which session each one serves. SQLite with a write-ahead
log.

All statements run in order on one dedicated thread, so the event loop never waits for a disk. A
commit survives the death of the process. A machine that crashes may lose the last commits, but then
its sandboxes are gone too. The file contains sessions' environment variables, so only its owner can
read it.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import sqlite3
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import structlog

from sandlot.domain.errors import Conflict, EngineProblem, StorageFull, StorageProblem
from sandlot.domain.recovery import Purpose, SandboxRecord
from sandlot.domain.session import Session, SessionState

T = TypeVar("T")

_SCHEMA = """
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
CREATE TABLE IF NOT EXISTS owner (only INTEGER PRIMARY KEY CHECK (only = 1), id TEXT NOT NULL) STRICT;
PRAGMA user_version = 1;
"""
SCHEMA_VERSION = 1
# How much is written to find out whether a disk is full: as much as a few database pages.
PROBE_BYTES = 64 * 1024

log = structlog.get_logger("sandlot.store")


@dataclass(frozen=True, slots=True)
class SessionRecord:
    """A session with data that only the worker needs: its variables and how it was requested."""

    session: Session
    env: Mapping[str, str] = field(default_factory=dict)
    idempotency_key: str | None = None
    request_digest: str = ""


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


class Store:
    """The worker's database.

    ``owner``: the id of the worker; its sandboxes are labelled with it.
    """

    def __init__(self, path: Path, owner: str) -> None:
        self._path = path
        self._owner = owner
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="sandlot-store")
        self._database: sqlite3.Connection | None = None
        self._closed = False
        self.full = False  # whether the last write found no room
        self._scrubbed = True  # whether the log is free of ended sessions' data

    async def open(self) -> None:
        try:
            await self._on_thread(self._open)
        except (sqlite3.Error, OSError) as error:
            raise EngineProblem(
                f"The worker cannot open its records in {self._path}: {error}. Check the folder's "
                "permissions and free space."
            ) from error

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            await self._on_thread(self._close)
            self._thread.shutdown(wait=False)

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
                )
                for session, env, key, digest in self._rows(
                    "SELECT session, env, idempotency_key, request_digest FROM sessions"
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
        """Record that the sandbox belongs to the session. Both records are written, or neither."""
        await self._write([_sandbox_row(sandbox), _session_row(record)])

    async def save(self, records: Iterable[SessionRecord], removing: SandboxRecord | None = None) -> None:
        """Write sessions and, in the same transaction, the sandbox that must be removed as a
        result.
        """
        records = list(records)
        statements = [_session_row(record) for record in records]
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
            ("DELETE FROM sessions WHERE id = ?", (session_id,))
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

    async def _on_thread(self, work: Callable[[], T]) -> T:
        # Shielded, so that a write that has started is finished and later writes stay in order.
        running = asyncio.get_running_loop().run_in_executor(self._thread, work)
        return await asyncio.shield(running)

    def _open(self) -> None:
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Create the file with our mode before SQLite creates it with the mode of the umask.
        os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        database = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
        try:
            version = database.execute("PRAGMA user_version").fetchone()[0]
            if version > SCHEMA_VERSION:
                raise EngineProblem(
                    f"{self._path} was written by a newer version of Sandlot (schema version "
                    f"{version}). Start that version."
                )
            database.execute("PRAGMA journal_mode = WAL")
            database.execute("PRAGMA synchronous = NORMAL")
            # Overwrite deleted data: no one may read an ended session's variables.
            database.execute("PRAGMA secure_delete = ON")
            database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            database.executescript(_SCHEMA)
            self._check_owner(database)
        except BaseException:
            database.close()
            raise
        self._database = database

    def _check_owner(self, database: sqlite3.Connection) -> None:
        """Refuse to open another worker's database. With another id a worker would find none of its
        sandboxes, report them as lost, and leave them running forever.
        """
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

    def _close(self) -> None:
        if self._database is not None:
            self._database.close()
            self._database = None

    def _rows(self, statement: str) -> list[tuple[Any, ...]]:
        assert self._database is not None
        return self._database.execute(statement).fetchall()

    def _scrub(self) -> None:
        assert self._database is not None
        try:
            self._database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        except sqlite3.Error as error:
            self._scrubbed = False
            raise self._problem(error) from error

    async def _write(self, statements: Sequence[tuple[str, tuple[object, ...]]]) -> None:
        try:
            await self._on_thread(lambda: self._transact(statements))
        except StorageFull:
            self.full = True
            raise
        self.full = False

    async def check_full(self) -> None:
        """Update ``full`` without waiting for a write: there may be none until the disk has room
        again.
        """
        if self.full:
            self.full = await self._on_thread(self._is_full)

    def _transact(self, statements: Sequence[tuple[str, tuple[object, ...]]]) -> None:
        assert self._database is not None
        try:
            self._database.execute("BEGIN IMMEDIATE")
            try:
                for statement, values in statements:
                    self._database.execute(statement, values)
                self._database.execute("COMMIT")
            except BaseException:
                # If the disk is full, SQLite has already rolled back.
                if self._database.in_transaction:
                    self._database.execute("ROLLBACK")
                raise
        except sqlite3.IntegrityError as error:
            raise Conflict(
                "This thread or idempotency key already has another session. Retry to get that session."
            ) from error
        except sqlite3.Error as error:
            raise self._problem(error) from error

    def _problem(self, error: sqlite3.Error) -> StorageProblem:
        # The low byte is the kind of error; the other bytes say which file operation failed.
        kind = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if kind == sqlite3.SQLITE_FULL or (kind == sqlite3.SQLITE_IOERR and self._is_full()):
            return StorageFull("The disk of the worker's data folder is full.")
        log.error("cannot write the worker's records", path=str(self._path), error=str(error))
        return StorageProblem(
            f"The worker cannot write its records ({error}). See its log.",
            # Another process has the file open and will release it.
            retryable=kind in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED),
        )

    def _is_full(self) -> bool:
        """Whether a small write fails for lack of space. SQLite reports quotas and file size limits
        as I/O errors, so its error alone does not tell.
        """
        try:
            with tempfile.TemporaryFile(dir=self._path.parent) as probe:
                probe.write(bytes(PROBE_BYTES))
                probe.flush()
                os.fsync(probe.fileno())
        except OSError as error:
            return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        return False


def _sandbox_row(record: SandboxRecord) -> tuple[str, tuple[object, ...]]:
    return (
        "INSERT INTO sandboxes VALUES (?, ?, ?) ON CONFLICT (id) DO UPDATE SET purpose = excluded.purpose",
        (record.id, record.environment, record.purpose.value),
    )


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
