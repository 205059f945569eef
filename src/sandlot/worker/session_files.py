"""A session's files: the sandbox's own, each call of which counts as activity, ends in time, and tells of a
loss as the session's.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress

from sandlot.domain.computer import Files
from sandlot.domain.errors import SandboxLost
from sandlot.domain.files import ArchiveSummary, FileChange, FileEntry
from sandlot.domain.files_within import FilesWithin
from sandlot.worker.executions import answered
from sandlot.worker.sessions import Sessions

# Seconds in which a sandbox does one thing with its files, or gives or takes the next piece of one. The part
# of the agent that does it runs as the sandbox's user, who may hold it up although the rest answers.
FILES_WITHIN_S = 120.0


class SessionFiles(FilesWithin):
    def __init__(self, sessions: Sessions, tenant: str, session_id: str) -> None:
        super().__init__(self._used)
        self._sessions = sessions
        self._tenant = tenant
        self._session_id = session_id

    @asynccontextmanager
    async def _used(self) -> AsyncIterator[Files]:
        using = self._sessions.use(self._tenant, self._session_id)
        async with using as (live, sandbox), live.answering(FILES_WITHIN_S):
            yield sandbox.files

    async def read(self, path: str, *, offset: int = 0, length: int | None = None) -> AsyncIterator[bytes]:
        async with self._sessions.use(self._tenant, self._session_id) as (live, sandbox):
            pieces = sandbox.files.read(path, offset=offset, length=length)
            async for piece in answered(live, pieces, FILES_WITHIN_S):
                yield piece

    async def read_archive(self, path: str, *, max_bytes: int | None = None) -> AsyncIterator[bytes]:
        async with self._sessions.use(self._tenant, self._session_id) as (live, sandbox):
            pieces = sandbox.files.read_archive(path, max_bytes=max_bytes)
            async for piece in answered(live, pieces, FILES_WITHIN_S):
                yield piece

    async def write(
        self,
        path: str,
        content: bytes | AsyncIterable[bytes],
        *,
        mode: int | None = None,
        parents: bool = True,
        exclusive: bool = False,
    ) -> FileEntry:
        using = self._sessions.use(self._tenant, self._session_id)
        async with using as (live, sandbox), live.answering(FILES_WITHIN_S) as limit:
            given = content if isinstance(content, bytes) else _at_their_pace(content, limit)
            return await sandbox.files.write(path, given, mode=mode, parents=parents, exclusive=exclusive)

    async def write_archive(
        self,
        path: str,
        tar: AsyncIterable[bytes],
        *,
        max_bytes: int | None = None,
        max_files: int | None = None,
    ) -> ArchiveSummary:
        using = self._sessions.use(self._tenant, self._session_id)
        async with using as (live, sandbox), live.answering(FILES_WITHIN_S) as limit:
            return await sandbox.files.write_archive(
                path, _at_their_pace(tar, limit), max_bytes=max_bytes, max_files=max_files
            )

    @asynccontextmanager
    async def watch(self, path: str, *, recursive: bool = False) -> AsyncIterator[AsyncIterator[FileChange]]:
        # Not held as a call: somebody who only looks must not keep a session alive for ever.
        async with AsyncExitStack() as watching:
            using = self._sessions.use(self._tenant, self._session_id)
            async with using as (live, sandbox), live.answering(FILES_WITHIN_S):
                entered = sandbox.files.watch(path, recursive=recursive)
                changes = await watching.enter_async_context(entered)

            async def explained() -> AsyncIterator[FileChange]:
                try:
                    async for change in answered(live, changes):
                        yield change
                except SandboxLost as error:
                    raise await self._sessions.explain(live, sandbox, error) from error

            yield explained()


async def _at_their_pace(content: AsyncIterable[bytes], limit: asyncio.Timeout) -> AsyncIterator[bytes]:
    """How long a client takes for its next piece does not count as the sandbox's time."""
    clock = asyncio.get_running_loop().time
    pieces = aiter(content)
    while True:
        _reschedule(limit, None)
        piece = await anext(pieces, None)
        _reschedule(limit, clock() + FILES_WITHIN_S)
        if piece is None:
            return
        yield piece


def _reschedule(limit: asyncio.Timeout, when: float | None) -> None:
    with suppress(RuntimeError):  # it has run out, or the write has ended before its content
        limit.reschedule(when)
