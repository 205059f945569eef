"""``Files`` that enter a context for each call, for example to find the sandbox and to count the
call.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from sandlot.domain.computer import Files
from sandlot.domain.files import ArchiveSummary, FileChange, FileEntry, FilePage, Search, Walk

OpenFiles = Callable[[], AbstractAsyncContextManager[Files]]


class FilesWithin:
    """Implements ``Files`` by delegating each call to the files that a context provides."""

    def __init__(self, open_files: OpenFiles, open_stream: OpenFiles | None = None) -> None:
        """``open_stream`` is for calls that yield piece by piece: each piece may be read by another
        task.
        """
        self._open_files = open_files
        self._open_stream = open_stream or open_files

    async def stat(self, path: str, *, follow: bool = True) -> FileEntry:
        async with self._open_files() as files:
            return await files.stat(path, follow=follow)

    async def list(self, path: str, *, after: str | None = None, limit: int = 1000) -> FilePage:
        async with self._open_files() as files:
            return await files.list(path, after=after, limit=limit)

    async def walk(self, path: str, *, depth: int = 0, glob: str | None = None, limit: int = 10_000) -> Walk:
        async with self._open_files() as files:
            return await files.walk(path, depth=depth, glob=glob, limit=limit)

    async def read(self, path: str, *, offset: int = 0, length: int | None = None) -> AsyncIterator[bytes]:
        async with self._open_stream() as files:
            async for piece in files.read(path, offset=offset, length=length):
                yield piece

    async def read_bytes(self, path: str, *, max_bytes: int = 16 * 1024 * 1024) -> bytes:
        async with self._open_files() as files:
            return await files.read_bytes(path, max_bytes=max_bytes)

    async def write(
        self,
        path: str,
        content: bytes | AsyncIterable[bytes],
        *,
        mode: int | None = None,
        parents: bool = True,
        exclusive: bool = False,
    ) -> FileEntry:
        async with self._open_files() as files:
            return await files.write(path, content, mode=mode, parents=parents, exclusive=exclusive)

    async def mkdir(self, path: str, *, parents: bool = True, mode: int = 0o755) -> FileEntry:
        async with self._open_files() as files:
            return await files.mkdir(path, parents=parents, mode=mode)

    async def move(self, source: str, destination: str, *, overwrite: bool = False) -> FileEntry:
        async with self._open_files() as files:
            return await files.move(source, destination, overwrite=overwrite)

    async def remove(self, path: str, *, recursive: bool = False, missing_ok: bool = False) -> int:
        async with self._open_files() as files:
            return await files.remove(path, recursive=recursive, missing_ok=missing_ok)

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
        async with self._open_files() as files:
            return await files.search(
                path, pattern, regex=regex, ignore_case=ignore_case, glob=glob, limit=limit
            )

    @asynccontextmanager
    async def watch(self, path: str, *, recursive: bool = False) -> AsyncIterator[AsyncIterator[FileChange]]:
        async with self._open_stream() as files, files.watch(path, recursive=recursive) as changes:
            yield changes

    async def read_archive(self, path: str, *, max_bytes: int | None = None) -> AsyncIterator[bytes]:
        async with self._open_stream() as files:
            async for piece in files.read_archive(path, max_bytes=max_bytes):
                yield piece

    async def write_archive(
        self,
        path: str,
        tar: AsyncIterable[bytes],
        *,
        max_bytes: int | None = None,
        max_files: int | None = None,
    ) -> ArchiveSummary:
        async with self._open_files() as files:
            return await files.write_archive(path, tar, max_bytes=max_bytes, max_files=max_files)
