"""The worker's memory: which sandboxes it made and which session each serves. SQLite, write-ahead log.

All statements run on one thread of their own, in the order in which they were asked for, so the event loop
never waits for a disk. A commit survives the death of the process; the death of the machine may lose the last
ones, but that ends the sandboxes as well. The file holds sessions' environment variables and is the owner's
alone.
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
# What is written to find out whether a disk is full: some pages of the database.
PROBE_BYTES = 64 * 1024

log = structlog.get_logger("sandlot.store")


@dataclass(frozen=True, slots=True)
class SessionRecord:
    """A session with what only the worker needs of it: variables, and how its creation was asked for."""

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
    """``owner``: the worker whose memory it is, and whose name its sandboxes carry."""

    def __init__(self, path: Path, owner: str) -> None:
        self._path = path
        self._owner = owner
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="sandlot-store")
        self._database: sqlite3.Connection | None = None
        self._closed = False
        self.full = False  # whether the last write found no room
        self._scrubbed = True  # whether the log holds nothing of sessions that have ended

    async def open(self) -> None:
        try:
            await self._on_thread(self._open)
        except (sqlite3.Error, OSError) as error:
            raise EngineProblem(f"the worker cannot open its memory {self._path}: {error}") from error

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            await self._on_thread(self._close)
            self._thread.shutdown(wait=False)

    # --- reading ------------------------------------------------------------------------------

    async def sessions(self) -> Sequence[SessionRecord]:
        """All that are remembered, ended ones too."""
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
        """Before it is made: whatever the worker dies of, what it leaves is on record."""
        await self._write([_sandbox_row(record)])

    async def forget_sandbox(self, sandbox_id: str) -> None:
        await self._write([("DELETE FROM sandboxes WHERE id = ?", (sandbox_id,))])

    async def claim(self, record: SessionRecord, sandbox: SandboxRecord) -> None:
        """The sandbox is the session's from here on; both or neither are written."""
        await self._write([_sandbox_row(sandbox), _session_row(record)])

    async def save(self, records: Iterable[SessionRecord], removing: SandboxRecord | None = None) -> None:
        """Sessions as they are now, and with them the sandbox that is to be removed because of it."""
        records = list(records)
        statements = [_session_row(record) for record in records]
        self._scrubbed &= all(record.session.state is not SessionState.ENDED for record in records)
        if removing is not None:
            statements.append(_sandbox_row(removing))
        await self._write(statements)

    async def save_activity(self, sessions: Iterable[Session]) -> None:
        """The sessions alone: their variables, which may be large, have not changed."""
        await self._write(
            [
                ("UPDATE sessions SET session = ? WHERE id = ?", (msgspec.json.encode(session), session.id))
                for session in sessions
            ]
        )

    async def forget_session(self, session_id: str, removing: SandboxRecord | None = None) -> None:
        """It is not ours; with it the sandbox that is to be removed because of that."""
        self._scrubbed = False
        statements: list[tuple[str, tuple[object, ...]]] = [
            ("DELETE FROM sessions WHERE id = ?", (session_id,))
        ]
        if removing is not None:
            statements.append(_sandbox_row(removing))
        await self._write(statements)

    async def forget_ended(self, before: float, keep: int) -> None:
        """Those that ended before a time, and all but the newest ones, whatever their age."""
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
        """Empties the log of what was written before: variables of sessions that have ended since."""
        if not self._scrubbed:
            self._scrubbed = True
            await self._on_thread(self._scrub)

    # --- on the thread ------------------------------------------------------------------------

    async def _on_thread(self, work: Callable[[], T]) -> T:
        # Shielded: a write that has begun is finished, and what follows it is in order.
        running = asyncio.get_running_loop().run_in_executor(self._thread, work)
        return await asyncio.shield(running)

    def _open(self) -> None:
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Made by us with its mode, before SQLite would make it with the umask's.
        os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        database = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
        try:
            version = database.execute("PRAGMA user_version").fetchone()[0]
            if version > SCHEMA_VERSION:
                raise EngineProblem(
                    f"{self._path} was written by a newer Sandlot (version {version}); start that one"
                )
            database.execute("PRAGMA journal_mode = WAL")
            database.execute("PRAGMA synchronous = NORMAL")
            # What is deleted is overwritten: variables of sessions that have ended are nobody's any more.
            database.execute("PRAGMA secure_delete = ON")
            database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            database.executescript(_SCHEMA)
            self._check_owner(database)
        except BaseException:
            database.close()
            raise
        self._database = database

    def _check_owner(self, database: sqlite3.Connection) -> None:
        """Under another name a worker would find none of its sandboxes: it would call them lost, and leave
        them running for ever.
        """
        known = database.execute("SELECT id FROM owner").fetchone()
        if known == (self._owner,):
            return
        if known is not None and database.execute("SELECT 1 FROM sandboxes LIMIT 1").fetchone():
            raise Conflict(
                f"{self._path} is the memory of worker {known[0]!r}, whose sandboxes carry that name: start "
                f"it as SANDLOT_WORKER_ID={known[0]}, or give {self._owner!r} a folder of its own "
                "(SANDLOT_DATA_DIR)"
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
        """Whether it still is, since nobody may write before it is known to have room again."""
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
                # A disk that is full has made SQLite roll back by itself.
                if self._database.in_transaction:
                    self._database.execute("ROLLBACK")
                raise
        except sqlite3.IntegrityError as error:
            raise Conflict(f"another session of this thread or key is on record: {error}") from error
        except sqlite3.Error as error:
            raise self._problem(error) from error

    def _problem(self, error: sqlite3.Error) -> StorageProblem:
        # The low byte is the kind; the others tell which of the file's operations failed.
        kind = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if kind == sqlite3.SQLITE_FULL or (kind == sqlite3.SQLITE_IOERR and self._is_full()):
            return StorageFull("the disk of the worker's data directory is full")
        log.error("the worker cannot write its memory", path=str(self._path), error=str(error))
        return StorageProblem(
            f"the worker cannot write its memory ({error}); its log says where",
            # Somebody else has the file open, and will let go of it.
            retryable=kind in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED),
        )

    def _is_full(self) -> bool:
        """A quota or a file's largest size look like a broken disk to SQLite: so a little is written."""
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
            # An ended session's secrets are of no use to anybody.
            msgspec.json.encode({} if ended else dict(record.env)),
        ),
    )
