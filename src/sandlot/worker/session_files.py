"""A session's files: the sandbox's own, each call of which counts as activity and tells of a loss as the
session's.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from sandlot.domain.computer import Files
from sandlot.domain.errors import SandboxLost
from sandlot.domain.files import FileChange
from sandlot.domain.files_within import FilesWithin
from sandlot.worker.sessions import Sessions


class SessionFiles(FilesWithin):
    def __init__(self, sessions: Sessions, tenant: str, session_id: str) -> None:
        super().__init__(self._used)
        self._sessions = sessions
        self._tenant = tenant
        self._session_id = session_id

    @asynccontextmanager
    async def _used(self) -> AsyncIterator[Files]:
        async with self._sessions.use(self._tenant, self._session_id) as (_, sandbox):
            yield sandbox.files

    @asynccontextmanager
    async def watch(self, path: str, *, recursive: bool = False) -> AsyncIterator[AsyncIterator[FileChange]]:
        # Not held as a call: somebody who only looks must not keep a session alive for ever.
        async with AsyncExitStack() as watching:
            async with self._sessions.use(self._tenant, self._session_id) as (live, sandbox):
                entered = sandbox.files.watch(path, recursive=recursive)
                changes = await watching.enter_async_context(entered)

            async def explained() -> AsyncIterator[FileChange]:
                try:
                    async for change in changes:
                        yield change
                except SandboxLost as error:
                    raise await self._sessions.explain(live, sandbox, error) from error

            yield explained()
