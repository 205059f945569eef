"""What the package cache has: blobs on disk, named by their SHA-256, and which of them answers which URL.

A blob is written beside the others and moved to its name when it is whole. What a dying worker leaves behind,
the next start removes. Beyond ``max_bytes``, what was not used for the longest time goes.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sandlot.worker.store.sqlite_file import SqliteFile

FILE_NAME: Final = "packages.sqlite3"
# Seconds in which a second use of an entry is not written down.
USE_EVERY_S: Final = 60.0
# How far below the limit the cache goes once it is above it, so that not every download deletes something.
KEEP: Final = 0.95
_ENTRIES: Final = """
CREATE TABLE entries (
    key TEXT PRIMARY KEY, sha256 TEXT NOT NULL, size INTEGER NOT NULL, type TEXT NOT NULL,
    etag TEXT NOT NULL, checked_at REAL NOT NULL, used_at REAL NOT NULL
) STRICT;
CREATE INDEX entries_by_use ON entries (used_at);
CREATE INDEX entries_by_blob ON entries (sha256);
"""
_SET: Final = """
INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (key) DO UPDATE SET sha256 = excluded.sha256,
size = excluded.size, type = excluded.type, etag = excluded.etag, checked_at = excluded.checked_at,
used_at = excluded.used_at
"""
_TOTAL: Final = "SELECT coalesce(sum(size), 0) FROM (SELECT DISTINCT sha256, size FROM entries)"


@dataclass(frozen=True, slots=True)
class Entry:
    """type: the content's. etag: the registry's, with which a page is asked for again.
    checked_at: when the registry last said that it is so."""

    sha256: str
    size: int
    type: str
    etag: str
    checked_at: float


class PackageStore(SqliteFile):
    def __init__(self, folder: Path, max_bytes: int, clock: Callable[[], float] = time.time) -> None:
        super().__init__(folder / FILE_NAME, (_ENTRIES,))
        self.max_bytes = max_bytes
        self._blobs = folder / "blobs"
        self._new = folder / "new"
        self._clock = clock

    async def open(self) -> None:
        await super().open()
        await self._on_thread(self._clean)

    async def find(self, key: str) -> tuple[Entry, int] | None:
        """The entry and its blob, as a file descriptor that the caller closes."""

        def work(database: sqlite3.Connection) -> tuple[Entry, int] | None:
            row = database.execute(
                "SELECT sha256, size, type, etag, checked_at, used_at FROM entries WHERE key = ?", (key,)
            ).fetchone()
            if row is None:
                return None
            entry = Entry(*row[:5])
            try:
                blob = os.open(self._path_of(entry.sha256), os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                database.execute("DELETE FROM entries WHERE key = ?", (key,))
                return None
            if os.fstat(blob).st_size != entry.size:  # the machine died before the disk had it all
                os.close(blob)
                database.execute("DELETE FROM entries WHERE key = ?", (key,))
                return None
            if self._clock() - row[5] >= USE_EVERY_S:
                database.execute("UPDATE entries SET used_at = ? WHERE key = ?", (self._clock(), key))
            return entry, blob

        return await self._transaction(work)

    def new_file(self) -> tuple[Path, int]:
        """A file for a blob that is on its way. The caller closes the descriptor."""
        path = self._new / os.urandom(16).hex()
        return path, os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)

    async def add(self, key: str, file: Path, entry: Entry) -> None:
        """Keep a file that is whole and on the disk as the answer to ``key``."""

        def work(database: sqlite3.Connection) -> list[str]:
            blob = self._path_of(entry.sha256)
            blob.parent.mkdir(mode=0o700, exist_ok=True)
            file.replace(blob)
            before = database.execute("SELECT sha256 FROM entries WHERE key = ?", (key,)).fetchone()
            values = (entry.sha256, entry.size, entry.type, entry.etag, entry.checked_at, self._clock())
            database.execute(_SET, (key, *values))
            gone = [] if before is None else _unused(database, [before[0]])
            return gone + _evict(database, self.max_bytes)

        # In one step: another add of the same content must not come between.
        await self._on_thread(lambda: self._unlink(self._transact(work)))

    async def checked(self, key: str, at: float) -> None:
        """The registry says that the entry is as it was."""
        await self._write([("UPDATE entries SET checked_at = ? WHERE key = ?", (at, key))])

    async def total_bytes(self) -> int:
        [(total,)] = await self._reading(lambda: self._rows(_TOTAL))
        return int(total)

    # --- on the thread ------------------------------------------------------------------------

    def _path_of(self, sha256: str) -> Path:
        return self._blobs / sha256[:2] / sha256

    def _unlink(self, blobs: list[str]) -> None:
        for sha256 in blobs:
            self._path_of(sha256).unlink(missing_ok=True)

    def _clean(self) -> None:
        """Remove what is on the disk and in no entry, and make the folders."""
        for folder in (self._blobs, self._new):
            folder.mkdir(mode=0o700, exist_ok=True)
        for file in self._new.iterdir():
            file.unlink()
        known = {sha256 for (sha256,) in self._rows("SELECT DISTINCT sha256 FROM entries")}
        self._unlink([file.name for file in self._blobs.glob("*/*") if file.name not in known])
        self._unlink(self._transact(lambda database: _evict(database, self.max_bytes)))


def _evict(database: sqlite3.Connection, max_bytes: int) -> list[str]:
    """Delete entries until the rest fits. Returns the blobs that no entry has any more."""
    [total] = database.execute(_TOTAL).fetchone()
    if total <= max_bytes:
        return []
    gone: list[str] = []
    for key, sha256, size in database.execute(
        "SELECT key, sha256, size FROM entries ORDER BY used_at"
    ).fetchall():
        if total <= max_bytes * KEEP:
            break
        database.execute("DELETE FROM entries WHERE key = ?", (key,))
        if _unused(database, [sha256]):
            total -= size
            gone.append(sha256)
    return gone


def _unused(database: sqlite3.Connection, blobs: list[str]) -> list[str]:
    return [
        sha256
        for sha256 in blobs
        if database.execute("SELECT 1 FROM entries WHERE sha256 = ?", (sha256,)).fetchone() is None
    ]
