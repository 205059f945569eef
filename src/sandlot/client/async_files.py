"""``AsyncFiles``: the files of a session, and transfers to and from this machine."""

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
    """The files of a session: read, write, list, search and watch them, upload and download.

    Paths in the sandbox are absolute, or relative to /workspace. A problem in the sandbox raises
    ``FileProblem``. A problem with a file on this machine raises Python's usual ``OSError``.
    """

    def __init__(self, files: Files) -> None:
        self._files = files

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"

    # file contents

    async def read(self, path: str, *, max_bytes: int = MAX_READ_BYTES) -> bytes:
        """Return the content of a file.

        A file of more than ``max_bytes`` raises ``FileProblem`` with the reason ``too_large``; use
        ``stream`` for it.
        """
        return await self._files.read_bytes(path, max_bytes=max_bytes)

    async def read_text(self, path: str, *, max_bytes: int = MAX_READ_BYTES) -> str:
        """Return the content of a file, decoded as UTF-8; invalid bytes are replaced."""
        return (await self.read(path, max_bytes=max_bytes)).decode("utf-8", "replace")

    async def stream(self, path: str, offset: int = 0, length: int | None = None) -> AsyncIterator[bytes]:
        """Iterate over the content of a file in pieces.

        ``offset``: where to start. ``length``: how many bytes at most.
        """
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
        """Create or replace a file.

        ``parents``: also create missing folders above it. ``exclusive``: fail if the file exists.
        ``mode``: the file's permissions.
        """
        if isinstance(content, str):
            content = content.encode()
        elif isinstance(content, bytearray | memoryview):
            content = bytes(content)
        if not isinstance(content, bytes | AsyncIterable):
            content = _from_thread(content)
        return await self._files.write(path, content, mode=mode, parents=parents, exclusive=exclusive)

    # folders and entries

    async def list(self, path: str = ".") -> builtins.list[FileEntry]:
        """Return all entries of a folder, up to 100,000."""
        entries: builtins.list[FileEntry] = []
        after: str | None = None
        while True:
            page = await self._files.list(path, after=after)
            entries += page.entries
            if page.next is None:
                return entries
            if len(entries) >= MAX_LISTED:
                raise FileProblem(
                    f"{path} has more than {MAX_LISTED} entries. Use walk() with a glob instead.",
                    reason="too_large",
                    path=path,
                )
            after = page.next

    async def walk(
        self, path: str = ".", *, depth: int = 0, glob: str | None = None, limit: int = 10_000
    ) -> Walk:
        """Return everything under a folder, up to ``limit`` entries.

        ``depth``: how many levels deep; 0 means all. ``glob``: only entries whose path below
        ``path`` matches, such as ``**/*.py``.
        """
        return await self._files.walk(path, depth=depth, glob=glob, limit=limit)

    async def stat(self, path: str, *, follow: bool = True) -> FileEntry:
        """Describe a file or folder: type, size, mode and so on.

        ``follow``: follow a symbolic link.
        """
        return await self._files.stat(path, follow=follow)

    async def exists(self, path: str) -> bool:
        """Return whether a file or folder exists."""
        try:
            await self._files.stat(path)
        except FileProblem as problem:
            if problem.reason in {"not_found", "not_a_directory"}:
                return False
            raise
        return True

    async def mkdir(self, path: str, *, parents: bool = True, mode: int = 0o755) -> FileEntry:
        """Create a folder.

        ``parents``: also create missing folders above it; an existing one is fine.
        """
        return await self._files.mkdir(path, parents=parents, mode=mode)

    async def move(self, source: str, destination: str, *, overwrite: bool = False) -> FileEntry:
        """Move or rename a file or folder. ``overwrite``: replace an existing destination."""
        return await self._files.move(source, destination, overwrite=overwrite)

    async def remove(self, path: str, *, recursive: bool = False, missing_ok: bool = False) -> int:
        """Remove a file or folder; return how many files and folders were removed.

        ``recursive``: also remove a folder that is not empty. ``missing_ok``: ignore a missing
        path.
        """
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
        """Return the lines that contain ``pattern`` in the files under ``path``, up to ``limit``.

        ``regex``: the pattern is a regular expression. ``glob``: search only matching files.
        """
        return await self._files.search(
            path, pattern, regex=regex, ignore_case=ignore_case, glob=glob, limit=limit
        )

    def watch(
        self, path: str = ".", *, recursive: bool = False
    ) -> AbstractAsyncContextManager[AsyncIterator[FileChange]]:
        """Watch a path for changes. ``recursive``: also in the folders below it.

        Use it as ``async with files.watch() as changes`` and iterate over ``changes``. Changes are
        reported from the moment the context is entered.
        """
        return self._files.watch(path, recursive=recursive)

    # transfers to and from this machine

    async def upload(
        self, local: str | os.PathLike[str], remote: str | None = None
    ) -> ArchiveSummary | FileEntry:
        """Copy a file or a whole folder from this machine into the sandbox.

        ``remote`` is the path of the copy; it defaults to the name of ``local``. Returns the entry
        of the new file, or how many files and bytes the folder had.
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
        """Copy a file or a whole folder from the sandbox to this machine.

        ``local`` is the path of the copy. If it is an existing folder, a file is put into it.
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
        # In a tar, an entry needs up to three blocks in addition to its content.
        max_archive_bytes = max_bytes + max_files * 2048
        with tempfile.TemporaryFile() as archive:
            await _save(
                self._files.read_archive(remote, max_bytes=max_archive_bytes),
                archive,
                max_archive_bytes,
                remote,
            )
            archive.seek(0)
            return await asyncio.to_thread(unpack, archive, target, max_bytes=max_bytes, max_files=max_files)

    async def _download_file(self, remote: str, target: Path, max_bytes: int) -> int:
        """Download to a temporary file first, so that a failed download keeps the existing file."""
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
                f"{path} exceeds {max_bytes} bytes. Pass a larger max_bytes to download().",
                reason="too_large",
                path=path,
            )
        await asyncio.to_thread(file.write, piece)
    return total


async def _pieces_of(file: IO[bytes]) -> AsyncIterator[bytes]:
    while piece := await asyncio.to_thread(file.read, PIECE_BYTES):
        yield piece


async def _from_thread(pieces: Iterable[bytes]) -> AsyncIterator[bytes]:
    """Iterate in a thread: a plain iterable may block, which would hold up the event loop."""
    iterator = iter(pieces)
    while (piece := await asyncio.to_thread(next, iterator, None)) is not None:
        yield piece


def _name_of(source: Path) -> str:
    return source.resolve().name or "."


def _plain_name(name: str) -> str:
    """Return a name from the sandbox if it is a plain file name: no path, no step up."""
    if name in {"", ".", ".."} or "/" in name or "\0" in name:
        raise FileProblem(
            f"{name!r:.200} is not a valid file name on this machine.", reason="invalid_path", path=name
        )
    return name
