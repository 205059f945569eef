"""A session's files: the sandbox's own, each call of which counts as activity and tells of a loss as the
session's.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager

from sandlot.domain.errors import SandboxLost
from sandlot.domain.files import ArchiveSummary, FileChange, FileEntry, FilePage, Search, Walk
from sandlot.providers.base import Sandbox
from sandlot.worker.live import Live
from sandlot.worker.sessions import Sessions


class SessionFiles:
    def __init__(self, sessions: Sessions, tenant: str, session_id: str) -> None:
        self._sessions = sessions
        self._tenant = tenant
        self._session_id = session_id

    async def stat(self, path: str, *, follow: bool = True) -> FileEntry:
        async with self._use() as (_, sandbox):
            return await sandbox.files.stat(path, follow=follow)

    async def list(self, path: str, *, after: str | None = None, limit: int = 1000) -> FilePage:
        async with self._use() as (_, sandbox):
            return await sandbox.files.list(path, after=after, limit=limit)

    async def walk(self, path: str, *, depth: int = 0, glob: str | None = None, limit: int = 10_000) -> Walk:
        async with self._use() as (_, sandbox):
            return await sandbox.files.walk(path, depth=depth, glob=glob, limit=limit)

    async def read(self, path: str, *, offset: int = 0, length: int | None = None) -> AsyncIterator[bytes]:
        async with self._use() as (_, sandbox):
            async for piece in sandbox.files.read(path, offset=offset, length=length):
                yield piece

    async def read_bytes(self, path: str, *, max_bytes: int = 16 * 1024 * 1024) -> bytes:
        async with self._use() as (_, sandbox):
            return await sandbox.files.read_bytes(path, max_bytes=max_bytes)

    async def write(
        self,
        path: str,
        content: bytes | AsyncIterable[bytes],
        *,
        mode: int | None = None,
        parents: bool = True,
        exclusive: bool = False,
    ) -> FileEntry:
        async with self._use() as (_, sandbox):
            return await sandbox.files.write(path, content, mode=mode, parents=parents, exclusive=exclusive)

    async def mkdir(self, path: str, *, parents: bool = True, mode: int = 0o755) -> FileEntry:
        async with self._use() as (_, sandbox):
            return await sandbox.files.mkdir(path, parents=parents, mode=mode)

    async def move(self, source: str, destination: str, *, overwrite: bool = False) -> FileEntry:
        async with self._use() as (_, sandbox):
            return await sandbox.files.move(source, destination, overwrite=overwrite)

    async def remove(self, path: str, *, recursive: bool = False, missing_ok: bool = False) -> int:
        async with self._use() as (_, sandbox):
            return await sandbox.files.remove(path, recursive=recursive, missing_ok=missing_ok)

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
        async with self._use() as (_, sandbox):
            return await sandbox.files.search(
                path, pattern, regex=regex, ignore_case=ignore_case, glob=glob, limit=limit
            )

    @asynccontextmanager
    async def watch(self, path: str, *, recursive: bool = False) -> AsyncIterator[AsyncIterator[FileChange]]:
        # Not held as a call: somebody who only looks must not keep a session alive for ever.
        async with AsyncExitStack() as watching:
            async with self._use() as (live, sandbox):
                entered = sandbox.files.watch(path, recursive=recursive)
                changes = await watching.enter_async_context(entered)

            async def explained() -> AsyncIterator[FileChange]:
                try:
                    async for change in changes:
                        yield change
                except SandboxLost as error:
                    raise await self._sessions.explain(live, sandbox, error) from error

            yield explained()

    async def read_archive(self, path: str, *, max_bytes: int | None = None) -> AsyncIterator[bytes]:
        async with self._use() as (_, sandbox):
            async for piece in sandbox.files.read_archive(path, max_bytes=max_bytes):
                yield piece

    async def write_archive(
        self,
        path: str,
        tar: AsyncIterable[bytes],
        *,
        max_bytes: int | None = None,
        max_files: int | None = None,
    ) -> ArchiveSummary:
        async with self._use() as (_, sandbox):
            return await sandbox.files.write_archive(path, tar, max_bytes=max_bytes, max_files=max_files)

    def _use(self) -> AbstractAsyncContextManager[tuple[Live, Sandbox]]:
        return self._sessions.use(self._tenant, self._session_id)
