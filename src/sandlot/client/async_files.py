"""``AsyncFiles``: a session's files, and whole files and folders to and from this machine.

Paths in the sandbox are absolute, or relative to /workspace. What goes wrong there is a ``FileProblem``;
what goes wrong with a file on this machine is the ``OSError`` that Python has for it.
"""

from __future__ import annotations

import asyncio
import builtins
import os
import tempfile
from collections.abc import AsyncIterable, AsyncIterator, Iterable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import IO, Final

from sandlot.client.packing import PIECE_BYTES, pack
from sandlot.client.unpacking import Downloaded, unpack
from sandlot.domain.computer import Files
from sandlot.domain.errors import FileProblem
from sandlot.domain.files import ArchiveSummary, FileChange, FileEntry, FileType, Search, Walk

MAX_READ_BYTES: Final = 16 * 1024 * 1024
MAX_DOWNLOAD_BYTES: Final = 1024 * 1024 * 1024
MAX_DOWNLOAD_FILES: Final = 100_000
MAX_LISTED: Final = 100_000


class AsyncFiles:
    def __init__(self, files: Files) -> None:
        self._files = files

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"

    # contents

    async def read(self, path: str, *, max_bytes: int = MAX_READ_BYTES) -> bytes:
        """The whole file; ``FileProblem`` (``too_large``) beyond ``max_bytes``: use ``stream``."""
        return await self._files.read_bytes(path, max_bytes=max_bytes)

    async def read_text(self, path: str, *, max_bytes: int = MAX_READ_BYTES) -> str:
        """As UTF-8, with what is not replaced."""
        return (await self.read(path, max_bytes=max_bytes)).decode("utf-8", "replace")

    async def stream(self, path: str, offset: int = 0, length: int | None = None) -> AsyncIterator[bytes]:
        async for piece in self._files.read(path, offset=offset, length=length):
            yield piece

    async def write(
        self,
        path: str,
        content: bytes | str | AsyncIterable[bytes] | Iterable[bytes],
        *,
        mode: int | None = None,
        parents: bool = True,
        exclusive: bool = False,
    ) -> FileEntry:
        """Makes or replaces the file, and makes the folders above it. ``exclusive``: never replaces."""
        if isinstance(content, str):
            content = content.encode()
        elif isinstance(content, bytearray | memoryview):
            content = bytes(content)
        if not isinstance(content, bytes | AsyncIterable):
            content = _from_thread(content)
        return await self._files.write(path, content, mode=mode, parents=parents, exclusive=exclusive)

    # names

    async def list(self, path: str = ".") -> builtins.list[FileEntry]:
        """What is in a folder: all of it, up to a hundred thousand entries."""
        entries: builtins.list[FileEntry] = []
        after: str | None = None
        while True:
            page = await self._files.list(path, after=after)
            entries += page.entries
            if page.next is None:
                return entries
            if len(entries) >= MAX_LISTED:
                raise FileProblem(
                    f"{path} has more than {MAX_LISTED} entries; walk it with a glob instead",
                    reason="too_large",
                    path=path,
                )
            after = page.next

    async def walk(
        self, path: str = ".", *, depth: int = 0, glob: str | None = None, limit: int = 10_000
    ) -> Walk:
        """Everything under a folder; ``depth`` 0: to the bottom."""
        return await self._files.walk(path, depth=depth, glob=glob, limit=limit)

    async def stat(self, path: str, *, follow: bool = True) -> FileEntry:
        return await self._files.stat(path, follow=follow)

    async def exists(self, path: str) -> bool:
        try:
            await self._files.stat(path)
        except FileProblem as problem:
            if problem.reason in {"not_found", "not_a_directory"}:
                return False
            raise
        return True

    async def mkdir(self, path: str, *, parents: bool = True, mode: int = 0o755) -> FileEntry:
        return await self._files.mkdir(path, parents=parents, mode=mode)

    async def move(self, source: str, destination: str, *, overwrite: bool = False) -> FileEntry:
        return await self._files.move(source, destination, overwrite=overwrite)

    async def remove(self, path: str, *, recursive: bool = False, missing_ok: bool = False) -> int:
        """Returns how many files and folders are gone."""
        return await self._files.remove(path, recursive=recursive, missing_ok=missing_ok)

    async def search(
        self,
        path: str,
        pattern: str,
        *,
        regex: bool = False,
        ignore_case: bool = False,
        glob: str | None = None,
        limit: int = 1000,
    ) -> Search:
        """Lines that have the pattern in them."""
        return await self._files.search(
            path, pattern, regex=regex, ignore_case=ignore_case, glob=glob, limit=limit
        )

    def watch(
        self, path: str = ".", *, recursive: bool = False
    ) -> AbstractAsyncContextManager[AsyncIterator[FileChange]]:
        """``async with files.watch() as changes``: watching has begun once the context is entered."""
        return self._files.watch(path, recursive=recursive)

    # to and from this machine

    async def upload(
        self, local: str | os.PathLike[str], remote: str | None = None
    ) -> ArchiveSummary | FileEntry:
        """A file, or a whole folder in one go. ``remote`` is what it becomes; by default its name.

        Answers with the file's entry, or with how many files and bytes the folder had.
        """
        source = Path(local)
        target = remote if remote is not None else await asyncio.to_thread(_name_of, source)
        if await asyncio.to_thread(source.is_dir):
            return await self._files.write_archive(target, _from_thread(pack(source)))
        file = await asyncio.to_thread(source.open, "rb")
        try:
            mode = os.fstat(file.fileno()).st_mode & 0o777
            return await self._files.write(target, _pieces_of(file), mode=mode)
        finally:
            file.close()

    async def download(
        self,
        remote: str,
        local: str | os.PathLike[str],
        *,
        max_bytes: int = MAX_DOWNLOAD_BYTES,
        max_files: int = MAX_DOWNLOAD_FILES,
    ) -> Downloaded:
        """A file or a whole folder. ``local`` is what it becomes; a file goes into a folder that is there.

        Whatever the sandbox sends, nothing is written outside of ``local``.
        """
        target = Path(local)
        entry = await self._files.stat(remote)
        if entry.type is FileType.DIRECTORY:
            return await self._download_folder(remote, target, max_bytes, max_files)
        if await asyncio.to_thread(target.is_dir):
            target = target / _plain_name(entry.name)
        return Downloaded(1, await self._download_file(remote, target, max_bytes))

    async def _download_folder(self, remote: str, target: Path, max_bytes: int, max_files: int) -> Downloaded:
        # An entry costs up to three blocks beside its content.
        most = max_bytes + max_files * 2048
        with tempfile.TemporaryFile() as archive:
            await _save(self._files.read_archive(remote, max_bytes=most), archive, most, remote)
            archive.seek(0)
            return await asyncio.to_thread(unpack, archive, target, max_bytes=max_bytes, max_files=max_files)

    async def _download_file(self, remote: str, target: Path, max_bytes: int) -> int:
        """Into a file beside it first: a download that breaks leaves what was there before."""
        target.parent.mkdir(parents=True, exist_ok=True)
        descriptor, partial = tempfile.mkstemp(prefix=f".{target.name[:100]}.", dir=target.parent)
        try:
            with os.fdopen(descriptor, "wb") as file:
                size = await _save(self._files.read(remote), file, max_bytes, remote)
                os.fchmod(file.fileno(), 0o644)
            os.replace(partial, target)
        except BaseException:
            os.unlink(partial)
            raise
        return size


async def _save(pieces: AsyncIterator[bytes], file: IO[bytes], max_bytes: int, path: str) -> int:
    total = 0
    async for piece in pieces:
        total += len(piece)
        if total > max_bytes:
            raise FileProblem(
                f"{path} exceeds {max_bytes} bytes; give download a larger max_bytes",
                reason="too_large",
                path=path,
            )
        await asyncio.to_thread(file.write, piece)
    return total


async def _pieces_of(file: IO[bytes]) -> AsyncIterator[bytes]:
    while piece := await asyncio.to_thread(file.read, PIECE_BYTES):
        yield piece


async def _from_thread(pieces: Iterable[bytes]) -> AsyncIterator[bytes]:
    """A plain iterable may block, so it is not asked on the event loop."""
    iterator = iter(pieces)
    while (piece := await asyncio.to_thread(next, iterator, None)) is not None:
        yield piece


def _name_of(source: Path) -> str:
    return source.resolve().name or "."


def _plain_name(name: str) -> str:
    """A name that the sandbox chose, as one step down from a folder here."""
    if name in {"", ".", ".."} or "/" in name or "\0" in name:
        raise FileProblem(f"{name!r:.200} cannot be a file's name here", reason="invalid_path", path=name)
    return name
