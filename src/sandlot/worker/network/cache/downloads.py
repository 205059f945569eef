"""Files of the package cache as their readers see them: on the disk, or on their way to it.

Many readers may follow one download while it runs.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol

from sandlot.worker.network.cache.disk import Disk
from sandlot.worker.network.cache.fetching import Answer
from sandlot.worker.network.streams import HostProblem

PIECE_BYTES: Final = 512 * 1024
# Seconds after which less than a piece is written too: readers of a slow download wait for it.
WRITE_EVERY_S: Final = 0.05


class Source(Protocol):
    """``size``: in all; None if it is not known yet. ``close`` must be called, once."""

    @property
    def size(self) -> int | None: ...

    async def read(self, at: int) -> bytes:
        """The next bytes, or empty bytes at the end. Raises ``HostProblem`` if the rest does not come."""
        ...

    def close(self) -> None: ...


class Blob:
    """Implements ``Source`` on a file that is whole."""

    def __init__(self, disk: Disk, file: int, size: int) -> None:
        self.size: int | None = size
        self._disk = disk
        self._file = file

    async def read(self, at: int) -> bytes:
        if at == self.size:
            return b""
        data = await self._disk.run(lambda: os.pread(self._file, PIECE_BYTES, at))
        if not data:
            raise HostProblem(502, "A file of the package cache was cut off.")
        return data

    def close(self) -> None:
        os.close(self._file)


class Download:
    """A file that grows. Its readers can read on after it was moved or deleted.

    ``abandon``: called if there is no reader for ``linger_s`` seconds. Some tools look at the beginning of a
    file, leave, and come back.
    """

    def __init__(
        self,
        disk: Disk,
        path: Path,
        file: int,
        answer: Answer,
        abandon: Callable[[], object],
        linger_s: float,
    ) -> None:
        self.path = path
        self.length = answer.length
        self.type = answer.type
        self.written = 0
        self.sha256 = ""
        self._disk = disk
        self._file = file
        self._answer = answer
        self._abandon = abandon
        self._linger_s = linger_s
        self._digest = hashlib.sha256()
        self._readers = 0
        self._ended = False
        self._problem: HostProblem | None = None
        self._grown = asyncio.Event()

    def follow(self) -> Source | None:
        """None if it has ended. Then what there is of it is in the store."""
        return None if self._ended else Follower(self)

    async def fill(self, max_bytes: int) -> None:
        """Write the answer's body. Raises ``HostProblem`` if it is not whole, or too large."""
        loop = asyncio.get_running_loop()
        pieces: list[bytes] = []
        size, due = 0, loop.time()
        async for data in self._answer.body():
            pieces.append(data)
            size += len(data)
            if self.written + size > max_bytes:
                raise too_large(max_bytes)
            if size >= PIECE_BYTES or loop.time() >= due:
                await self._write(pieces, size)
                pieces, size, due = [], 0, loop.time() + WRITE_EVERY_S
        await self._write(pieces, size)
        if self.length is not None and self.written != self.length:
            raise HostProblem(502, "The registry sent less than it had announced.")
        await self._disk.run(lambda: os.fsync(self._file))
        self.sha256 = self._digest.hexdigest()

    def end(self, problem: HostProblem | None = None) -> None:
        """Nothing more comes. Readers get what there is, and then the problem."""
        self._ended, self._problem = True, problem
        self._grown.set()
        self._close_unused()

    async def read(self, at: int) -> bytes:
        while at >= self.written and not self._ended:
            self._grown.clear()
            await self._grown.wait()
        if at < self.written:
            size = min(PIECE_BYTES, self.written - at)
            return await self._disk.run(lambda: os.pread(self._file, size, at))
        if self._problem is not None:
            raise self._problem
        return b""

    def joined(self) -> None:
        self._readers += 1

    def left(self) -> None:
        self._readers -= 1
        if not self._readers and not self._ended:
            asyncio.get_running_loop().call_later(self._linger_s, self._abandon_unused)
        self._close_unused()

    def _abandon_unused(self) -> None:
        if not self._readers and not self._ended:
            self._abandon()

    async def _write(self, pieces: list[bytes], size: int) -> None:
        def work() -> None:
            for piece in pieces:
                self._digest.update(piece)
                view = memoryview(piece)
                while view:
                    view = view[os.write(self._file, view) :]

        try:
            await self._disk.run(work)
        except OSError as error:
            why = os.strerror(error.errno or 0)
            raise HostProblem(507, f"The package cache cannot write to its disk: {why}.") from None
        self.written += size
        self._grown.set()

    def _close_unused(self) -> None:
        if self._ended and not self._readers and self._file >= 0:
            os.close(self._file)
            self._file = -1


class Follower:
    """Implements ``Source`` on a download."""

    def __init__(self, download: Download) -> None:
        self.size = download.length
        self._download = download
        download.joined()

    async def read(self, at: int) -> bytes:
        return await self._download.read(at)

    def close(self) -> None:
        self._download.left()


def too_large(max_bytes: int) -> HostProblem:
    return HostProblem(
        502, f"It is larger than {max_bytes} bytes, the most that the package cache takes. Ask the operator."
    )
