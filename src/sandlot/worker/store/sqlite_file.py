"""A SQLite file with a write-ahead log, which only its owner can read.

All statements run in order on one dedicated thread, so the event loop never waits for a disk. A
commit survives the death of the process. A machine that crashes may lose the last commits.
"""

from __future__ import annotations

import asyncio
import errno
import os
import sqlite3
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import structlog

from sandlot.domain.errors import Conflict, EngineProblem, SandlotError, StorageFull, StorageProblem

T = TypeVar("T")
Statement = tuple[str, tuple[object, ...]]

# How much is written to find out whether a disk is full: as much as a few database pages.
PROBE_BYTES = 64 * 1024

log = structlog.get_logger("sandlot.store")


class SqliteFile:
    """``migrations``: one script for each version of the schema, in order. A file of version n has
    seen the first n of them. Never change one that was released; add another.
    """

    synchronous = "NORMAL"

    def __init__(self, path: Path, migrations: Sequence[str]) -> None:
        self._path = path
        self._migrations = migrations
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"sandlot-{path.stem}")
        self._database: sqlite3.Connection | None = None
        self._closed = False
        self.full = False  # whether the last write found no room

    async def open(self) -> None:
        try:
            await self._on_thread(self._open)
        except (sqlite3.Error, OSError) as error:
            raise EngineProblem(
                f"The server cannot open {self._path}: {error}. Check the folder's "
                "permissions and free space."
            ) from error

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            await self._on_thread(self._close)
            self._thread.shutdown(wait=False)

    async def check_full(self) -> None:
        """Update ``full`` without waiting for a write: there may be none until the disk has room
        again.
        """
        if self.full:
            self.full = await self._on_thread(self._is_full)

    # --- for the tables -----------------------------------------------------------------------

    def _check(self, database: sqlite3.Connection) -> None:
        """Look at the file before it is used. An error that this raises is the opening's."""

    async def _on_thread(self, work: Callable[[], T]) -> T:
        # Shielded, so that a write that has started is finished and later writes stay in order.
        running = asyncio.get_running_loop().run_in_executor(self._thread, work)
        return await asyncio.shield(running)

    def _rows(self, statement: str, values: tuple[object, ...] = ()) -> list[tuple[Any, ...]]:
        assert self._database is not None
        return self._database.execute(statement, values).fetchall()

    async def _reading(self, work: Callable[[], T]) -> T:
        """Run ``work``, which only reads, on the thread."""

        def translated() -> T:
            try:
                return work()
            except sqlite3.Error as error:
                raise self._problem(error) from error

        return await self._on_thread(translated)

    async def _write(self, statements: Sequence[Statement]) -> None:
        def work(database: sqlite3.Connection) -> None:
            for statement, values in statements:
                database.execute(statement, values)

        await self._transaction(work)

    async def _transaction(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run ``work`` on the thread, as one transaction."""
        try:
            done = await self._on_thread(lambda: self._transact(work))
        except StorageFull:
            self.full = True
            raise
        self.full = False
        return done

    # --- on the thread ------------------------------------------------------------------------

    def _open(self) -> None:
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Create the file with our mode before SQLite creates it with the mode of the umask.
        os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        database = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
        try:
            version = database.execute("PRAGMA user_version").fetchone()[0]
            if version > len(self._migrations):
                raise EngineProblem(
                    f"{self._path} was written by a newer version of Sandlot (schema version "
                    f"{version}). Start that version."
                )
            database.execute("PRAGMA journal_mode = WAL")
            database.execute(f"PRAGMA synchronous = {self.synchronous}")
            # Overwrite deleted data: no one may read an ended session's variables.
            database.execute("PRAGMA secure_delete = ON")
            database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            for number, script in enumerate(self._migrations[version:], start=version + 1):
                # One transaction: a process that dies here leaves the version before.
                database.executescript(f"BEGIN; {script} PRAGMA user_version = {number}; COMMIT;")
            self._check(database)
        except BaseException:
            database.close()
            raise
        self._database = database

    def _close(self) -> None:
        if self._database is not None:
            self._database.close()
            self._database = None

    def _transact(self, work: Callable[[sqlite3.Connection], T]) -> T:
        assert self._database is not None
        try:
            self._database.execute("BEGIN IMMEDIATE")
            try:
                done = work(self._database)
                self._database.execute("COMMIT")
            except BaseException:
                # If the disk is full, SQLite has already rolled back.
                if self._database.in_transaction:
                    self._database.execute("ROLLBACK")
                raise
        except sqlite3.IntegrityError as error:
            raise self._duplicate(error) from error
        except sqlite3.Error as error:
            raise self._problem(error) from error
        return done

    def _duplicate(self, error: sqlite3.IntegrityError) -> SandlotError:
        return Conflict(f"Another record has the same name: {error}")

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
