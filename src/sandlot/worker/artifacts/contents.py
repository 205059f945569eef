"""The contents of artifacts on the worker's disk. Equal contents of one tenant are one file.

A content is written to a file of its own first, and gets its name once it is complete and on the disk. So
what has its name is whole. Tenants share no files: nobody can learn whether another one has a content too.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import os
import shutil
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final, TypeVar

import structlog

from sandlot.domain.capacity.disk import DiskSpace, disk_problem
from sandlot.domain.errors import StorageFull, StorageProblem
from sandlot.worker.disk import DATA_DISK

log = structlog.get_logger("sandlot.artifacts")

T = TypeVar("T")

FOLDER: Final = "artifacts"
# Bytes that are written or read in one go, by a thread.
BATCH_BYTES: Final = 1024 * 1024
# How many bytes are written between two looks at the free space.
LOOK_EVERY_BYTES: Final = 16 * 1024 * 1024
_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class TooLargeError(Exception):
    """The content has more bytes than it may."""


@dataclass(frozen=True, slots=True)
class Written:
    """A content that has no name yet. ``file``: where it is."""

    file: Path
    size: int
    digest: str


class Contents:
    def __init__(self, folder: Path, min_free_bytes: int | None) -> None:
        self._root = folder / FOLDER
        self._incoming = self._root / "incoming"
        self._kept = self._root / "kept"
        self._min_free_bytes = min_free_bytes

    async def open(self, known: Collection[tuple[str, str]]) -> None:
        """Remove what an earlier process left. ``known``: tenant and digest of what has a record."""
        try:
            await asyncio.to_thread(self._open, {self.file(*content) for content in known})
        except OSError as error:
            raise _problem(error) from error

    async def write(self, name: str, pieces: AsyncIterator[bytes], max_bytes: int) -> Written:
        """Write the pieces to the disk. Raises ``TooLargeError``, and ``StorageFull`` without enough space.

        ``name``: that no other content has. What the source raises passes through, and nothing stays then.
        """
        file = self._incoming / name
        try:
            with file.open("xb") as opened:
                size, digest = await self._write(opened, pieces, max_bytes)
        except BaseException as error:
            with contextlib.suppress(OSError):
                file.unlink(missing_ok=True)
            if isinstance(error, OSError):
                raise _problem(error) from error
            raise
        return Written(file, size, digest)

    async def _write(self, opened: BinaryIO, pieces: AsyncIterator[bytes], max_bytes: int) -> tuple[int, str]:
        digest = hashlib.sha256()
        size, looked_at = 0, -LOOK_EVERY_BYTES
        batch: list[bytes] = []
        batched = 0

        def flush() -> None:
            for piece in batch:
                digest.update(piece)
                opened.write(piece)

        async for piece in pieces:
            size += len(piece)
            if size > max_bytes:
                raise TooLargeError
            if size - looked_at >= LOOK_EVERY_BYTES:
                await self.check_space()
                looked_at = size
            batch.append(piece)
            batched += len(piece)
            if batched >= BATCH_BYTES:
                await self._on_disk(flush)
                batch.clear()
                batched = 0

        def finish() -> None:
            flush()
            opened.flush()
            os.fsync(opened.fileno())

        await self._on_disk(finish)
        return size, digest.hexdigest()

    async def keep(self, tenant: str, written: Written) -> None:
        """Give the content its name. When this returns, it stays even if the machine stops."""
        await self._on_disk(lambda: self._name(written.file, self.file(tenant, written.digest)))

    async def discard(self, written: Written) -> None:
        await self._on_disk(lambda: written.file.unlink(missing_ok=True))

    async def remove(self, tenant: str, digest: str) -> None:
        await self._on_disk(lambda: self.file(tenant, digest).unlink(missing_ok=True))

    async def read(self, tenant: str, digest: str) -> AsyncGenerator[bytes, None]:
        """Read a content. Its last piece comes only if all of it is what was written."""
        file = self.file(tenant, digest)
        try:
            opened = file.open("rb")
        except OSError as error:
            raise _problem(error) from error
        actual = hashlib.sha256()

        def next_piece() -> bytes:
            piece = opened.read(BATCH_BYTES)
            actual.update(piece)
            return piece

        with opened:
            piece = await self._on_disk(next_piece)
            while following := await self._on_disk(next_piece):
                yield piece
                piece = following
            if actual.hexdigest() != digest:
                log.error("an artifact's content is damaged", file=str(file))
                raise StorageProblem("The artifact's content is damaged on the server's disk.")
            if piece:
                yield piece

    async def check_space(self) -> None:
        """Raise ``StorageFull`` if the disk has less free space than it must keep."""
        usage = await self._on_disk(lambda: shutil.disk_usage(self._root))
        problem = disk_problem(DiskSpace(DATA_DISK, usage.free, usage.total), self._min_free_bytes)
        if problem is not None:
            raise StorageFull(f"The artifact was not kept: {problem}.")

    # --- on the disk --------------------------------------------------------------------------

    def file(self, tenant: str, digest: str) -> Path:
        """Where a content is, if it is here."""
        # Not by its name, in which a tenant may have any characters.
        owner = hashlib.sha256(tenant.encode()).hexdigest()[:32]
        return self._kept / owner / digest[:2] / digest

    def _open(self, known: set[Path]) -> None:
        for folder in (self._root, self._incoming, self._kept):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for left in self._incoming.iterdir():
            left.unlink()
        for folder_name, _, names in os.walk(self._kept):
            for name in names:
                file = Path(folder_name, name)
                if file not in known:
                    log.info("removed a content that no artifact has", file=str(file))
                    file.unlink()

    def _name(self, file: Path, target: Path) -> None:
        if target.exists():
            file.unlink()
            return
        for folder in (target.parent.parent, target.parent):
            folder.mkdir(mode=0o700, exist_ok=True)
        file.rename(target)
        for folder in (target.parent, target.parent.parent, self._kept):
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    async def _on_disk(self, work: Callable[[], T]) -> T:
        """Run ``work`` in a thread. A cancelled caller waits for its end, so that no file closes under it."""
        running = asyncio.get_running_loop().run_in_executor(None, work)
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            await asyncio.wait({running})
            raise
        except OSError as error:
            raise _problem(error) from error


def _problem(error: OSError) -> StorageProblem:
    if error.errno in _FULL:
        return StorageFull("The artifact was not kept: the disk of the worker's data folder is full.")
    log.error("cannot use an artifact's file", error=str(error))
    return StorageProblem(f"The server cannot use the artifact's file ({error.strerror}). See its log.")
