"""Recordings on disk: a file for each session, in a folder for each tenant. Only its own user can read them.

Everything here waits for the disk, so it runs on a thread, one call at a time.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter
from collections.abc import Callable, Collection, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sandlot.domain.errors import NotFound
from sandlot.domain.ids import is_session_id
from sandlot.domain.recordings.cast import Cast, end_of

ENDING: Final = ".cast"
# Kept free for the note that a recording stopped.
RESERVED_BYTES: Final = 1024
HEADER_BYTES: Final = 4096
# More than one line has.
TAIL_BYTES: Final = 1024 * 1024
READ_BYTES: Final = 64 * 1024
CONTINUES: Final = "recording continues; what was written in between is not in it"

Step = Callable[[Cast], bytes]


@dataclass(frozen=True, slots=True)
class Name:
    """Which recording. The tenant is part of it, so that no tenant finds another's."""

    tenant: str
    session_id: str


@dataclass(frozen=True, slots=True)
class Use:
    size: int
    changed_at: float


class CastFile:
    """A recording that is being written. ``stopped``: why nothing more is written to it, if so."""

    def __init__(self, path: Path, session_id: str, max_bytes: int) -> None:
        self._path = path
        self._session_id = session_id
        self._max_bytes = max_bytes
        self._cast: Cast | None = None
        self._began_at = int(time.time())  # before anything is recorded, not when it is written
        self.size = 0
        self.stopped: str | None = None

    def add(self, steps: Sequence[Step]) -> None:
        """Append what the steps make. A crash leaves at most one cut line."""
        if self.stopped is not None:
            return
        lines = bytearray()
        most = self._max_bytes - RESERVED_BYTES
        if self._cast is None:
            self._cast, begin = self._opened()
            if self.size >= most:
                self.stopped = full(self._max_bytes)  # as the recording says already
                return
            lines += begin
        for step in steps:
            more = step(self._cast)
            if self.size + len(lines) + len(more) > most:
                self.stopped = full(self._max_bytes)
                lines += self._cast.note(time.time(), self.stopped, visible=True)
                break
            lines += more
        self._append(bytes(lines))

    def _opened(self) -> tuple[Cast, bytes]:
        """The recording with its header, or the one that an earlier process has begun."""
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError), self._path.open("r+b") as file:
            first = file.readline(HEADER_BYTES)
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - TAIL_BYTES))
            end = end_of(first, file.read(), size)
            self.size = 0 if end is None else end.size
            file.truncate(self.size)
            if end is not None:
                cast = Cast(end.began_at, end.last_s)
                return cast, cast.note(time.time(), CONTINUES)
        cast = Cast(self._began_at)
        return cast, cast.header(f"Sandlot session {self._session_id}")

    def _append(self, lines: bytes) -> None:
        # Without a buffer: closing it would write the rest of lines that were given up.
        file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            rest = memoryview(lines)
            while rest:
                rest = rest[os.write(file, rest) :]
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(file, self.size)
            raise
        finally:
            os.close(file)
        self.size += len(lines)

    def removed(self, why: str) -> None:
        self.stopped, self.size = why, 0


class RecordingFolder:
    """``used_bytes``: how much disk all recordings take. Any thread may read it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._used: dict[Name, Use] = {}
        self.used_bytes = 0

    def scan(self) -> None:
        """Find what earlier processes have recorded."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for path in self._folder.glob(f"*/*{ENDING}"):
            status = path.stat()
            self._count(Name(path.parent.name, path.stem), Use(status.st_size, status.st_mtime))

    @property
    def count(self) -> int:
        return len(self._used)

    def file(self, name: Name, max_bytes: int) -> CastFile:
        return CastFile(self._path(name), name.session_id, max_bytes)

    def written(self, name: Name, size: int) -> None:
        self._count(name, Use(size, time.time()))

    def remove_old(self, before: float, being_written: Collection[Name]) -> None:
        for name, use in list(self._used.items()):
            if use.changed_at < before and name not in being_written:
                self._remove(name)

    def make_room(self, max_bytes: int, being_written: Collection[Name]) -> list[Name]:
        """Remove the oldest recordings of the tenant that has the most, ended sessions' first.

        So nobody can push another tenant's recordings out by making large ones.
        """
        removed = []
        while self.used_bytes > max_bytes:
            sizes: Counter[str] = Counter()
            for name, use in self._used.items():
                sizes[name.tenant] += use.size
            [(tenant, _)] = sizes.most_common(1)
            oldest = min(
                (name for name in self._used if name.tenant == tenant),
                key=lambda name: (name in being_written, self._used[name].changed_at),
            )
            self._remove(oldest)
            removed.append(oldest)
        return removed

    def read(self, name: Name) -> Generator[bytes, None, None]:
        """The recording as it is now, in whole lines. Raises ``NotFound`` at the first piece."""
        if not is_session_id(name.session_id):
            raise NotFound("There is no such recording.")
        try:
            file = self._path(name).open("rb")
        except FileNotFoundError:
            raise NotFound("There is no such recording.") from None
        with file:
            left = os.fstat(file.fileno()).st_size
            rest = b""
            while left > 0 and (data := file.read(min(left, READ_BYTES))):
                left -= len(data)
                whole, newline, cut = data.rpartition(b"\n")
                if newline:
                    yield rest + whole + newline
                    rest = cut
                else:
                    rest += data

    def _remove(self, name: Name) -> None:
        path = self._path(name)
        path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # it has others
            path.parent.rmdir()
        self._count(name, None)

    def _count(self, name: Name, use: Use | None) -> None:
        before = self._used.pop(name, None)
        if use is not None:
            self._used[name] = use
        self.used_bytes += (0 if use is None else use.size) - (0 if before is None else before.size)

    def _path(self, name: Name) -> Path:
        return self._folder / name.tenant / f"{name.session_id}{ENDING}"


def full(max_bytes: int) -> str:
    return f"recording stopped: it has reached {max_bytes} bytes"
