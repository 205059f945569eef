"""A session's files. Each call goes to the sandbox's own files, counts as activity, has a time
limit, and reports a lost sandbox as the session's loss.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress

from sandlot.domain.callers.principal import Principal
from sandlot.domain.computer import Files
from sandlot.domain.errors import SandboxLost
from sandlot.domain.files import ArchiveSummary, FileChange, FileEntry
from sandlot.domain.files_within import FilesWithin
from sandlot.domain.history.events import EventKind
from sandlot.worker.sessions.executions import while_responsive
from sandlot.worker.sessions.lifecycle import SessionLifecycle
from sandlot.worker.sessions.live_session import LiveSession

# Seconds for one file operation, or for reading or writing the next piece of a file. The agent's
# file helper runs as the sandbox's user, whose code may block it even while the rest of the agent
# answers.
FILES_WITHIN_S = 120.0


class SessionFiles(FilesWithin):
    """The changes that a caller makes are recorded in the history."""

    def __init__(self, sessions: SessionLifecycle, caller: Principal, session_id: str) -> None:
        super().__init__(self._open_sandbox_files)
        self._sessions = sessions
        self._caller = caller
        self._tenant = caller.tenant
        self._session_id = session_id

    @asynccontextmanager
    async def _sandbox_files(self) -> AsyncIterator[tuple[LiveSession, Files]]:
        using = self._sessions.use(self._tenant, self._session_id)
        async with using as (live_session, sandbox), live_session.awaiting_response(FILES_WITHIN_S):
            yield live_session, sandbox.files

    @asynccontextmanager
    async def _open_sandbox_files(self) -> AsyncIterator[Files]:
        async with self._sandbox_files() as (_, files):
            yield files

    async def read(self, path: str, *, offset: int = 0, length: int | None = None) -> AsyncIterator[bytes]:
        async with self._sessions.use(self._tenant, self._session_id) as (live_session, sandbox):
            pieces = sandbox.files.read(path, offset=offset, length=length)
            async for piece in while_responsive(live_session, pieces, FILES_WITHIN_S):
                yield piece

    async def read_archive(self, path: str, *, max_bytes: int | None = None) -> AsyncIterator[bytes]:
        async with self._sessions.use(self._tenant, self._session_id) as (live_session, sandbox):
            pieces = sandbox.files.read_archive(path, max_bytes=max_bytes)
            async for piece in while_responsive(live_session, pieces, FILES_WITHIN_S):
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
        async with using as (live_session, sandbox), live_session.awaiting_response(FILES_WITHIN_S) as limit:
            paced = content if isinstance(content, bytes) else _at_client_pace(content, limit)
            entry = await sandbox.files.write(path, paced, mode=mode, parents=parents, exclusive=exclusive)
            self._record(EventKind.FILE_WRITTEN, live_session, {"path": path}, {"bytes": entry.size})
            return entry

    async def write_archive(
        self,
        path: str,
        tar: AsyncIterable[bytes],
        *,
        max_bytes: int | None = None,
        max_files: int | None = None,
    ) -> ArchiveSummary:
        using = self._sessions.use(self._tenant, self._session_id)
        async with using as (live_session, sandbox), live_session.awaiting_response(FILES_WITHIN_S) as limit:
            summary = await sandbox.files.write_archive(
                path, _at_client_pace(tar, limit), max_bytes=max_bytes, max_files=max_files
            )
            figures = {"bytes": summary.bytes, "files": summary.files}
            self._record(EventKind.FILE_WRITTEN, live_session, {"path": path}, figures)
            return summary

    async def move(self, source: str, destination: str, *, overwrite: bool = False) -> FileEntry:
        async with self._sandbox_files() as (live_session, files):
            entry = await files.move(source, destination, overwrite=overwrite)
            paths = {"path": source, "destination": destination}
            self._record(EventKind.FILE_MOVED, live_session, paths)
            return entry

    async def remove(self, path: str, *, recursive: bool = False, missing_ok: bool = False) -> int:
        async with self._sandbox_files() as (live_session, files):
            removed = await files.remove(path, recursive=recursive, missing_ok=missing_ok)
            if removed:
                self._record(EventKind.FILE_REMOVED, live_session, {"path": path}, {"files": removed})
            return removed

    def _record(
        self,
        kind: EventKind,
        live_session: LiveSession,
        paths: Mapping[str, str],
        figures: Mapping[str, int] | None = None,
    ) -> None:
        self._sessions.history.recorder.file_changed(
            kind, live_session.session, live_session.record.env, self._caller, paths, figures
        )

    @asynccontextmanager
    async def watch(self, path: str, *, recursive: bool = False) -> AsyncIterator[AsyncIterator[FileChange]]:
        # Watching does not count as a call: a client that only watches must not keep a session
        # alive forever.
        async with AsyncExitStack() as watching:
            using = self._sessions.use(self._tenant, self._session_id)
            async with using as (live_session, sandbox), live_session.awaiting_response(FILES_WITHIN_S):
                entered = sandbox.files.watch(path, recursive=recursive)
                changes = await watching.enter_async_context(entered)

            async def explained() -> AsyncIterator[FileChange]:
                try:
                    async for change in while_responsive(live_session, changes):
                        yield change
                except SandboxLost as error:
                    raise await self._sessions.explain(live_session, sandbox, error) from error

            yield explained()


async def _at_client_pace(content: AsyncIterable[bytes], limit: asyncio.Timeout) -> AsyncIterator[bytes]:
    """Yield the client's content.

    Pauses the time limit while the client prepares its next piece.
    """
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
    with suppress(RuntimeError):  # the limit has expired, or the write ended before its content
        limit.reschedule(when)
