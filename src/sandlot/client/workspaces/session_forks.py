"""The part of ``AsyncSession`` that gives its files to other sessions, and takes them back."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Self, Unpack

from sandlot.client.workspaces.async_workspace import AsyncSessionWorkspace
from sandlot.client.workspaces.forks import (
    ForkOptions,
    create_all,
    forget_snapshot,
    fork_requests,
    take_fork_snapshot,
)
from sandlot.domain.errors import InvalidRequest
from sandlot.domain.service import SandboxService
from sandlot.domain.session import Session
from sandlot.domain.workspaces.snapshots import Restored, RestoreSnapshot


class AsyncSessionForks:
    """``workspace``: the session's files as a whole, and their snapshots."""

    _service: SandboxService
    _id: str
    info: Session
    workspace: AsyncSessionWorkspace

    def _forked(self, info: Session) -> Self:
        """Another session, which ``fork`` has made from this one."""
        raise NotImplementedError

    async def fork(self, count: int = 1, **options: Unpack[ForkOptions]) -> list[Self]:
        """Make new sessions whose files are this session's, as they are now.

        They have the same environment, limits, metadata, timeouts and network policy, and no variables but
        those in ``env``. They only read the volumes that this session has, even if it writes to them:
        ``info.volumes`` of a fork says so. Processes, shells and network grants are not copied. From then on
        each session has files of its own. If one of them cannot be created, none is, and this raises the
        error.

        ``async with`` deletes a fork at the end, unless it belongs to a thread. For the options, see
        ``ForkOptions``.
        """
        fork_requests(self.info, count, options)  # refuses a mistake before anything is done
        parent = self.info = await self._service.get_session(self._id)
        requests = fork_requests(parent, count, options)
        snapshot = await take_fork_snapshot(self._service, self._id)
        kept = False
        try:
            sessions = await create_all(
                self._service, [replace(request, snapshot=snapshot) for request in requests]
            )
            kept = options.get("keep_snapshot", False)
        finally:
            if not kept:
                await asyncio.shield(asyncio.ensure_future(forget_snapshot(self._service, snapshot)))
        return [self._forked(session) for session in sessions]

    async def hibernate(self) -> Self:
        """End every process of the session and give up its sandbox, but keep its files.

        It uses no memory until its next use, which gives it a new sandbox with its files: its generation
        grows.
        """
        self.info = await self._service.hibernate_session(self._id)
        return self

    async def promote(self, fork: AsyncSessionForks | str) -> Restored:
        """Give this session the files of another one, such as the best of its forks.

        ``fork``: the session or its id. It stays as it is. Every process of this session ends, and it gets a
        new sandbox; the result says what was lost and what was kept.
        """
        source = fork if isinstance(fork, str) else fork.info.id
        if source == self._id:
            raise InvalidRequest("A session cannot be promoted to itself. Pass one of its forks.")
        snapshot = await take_fork_snapshot(self._service, source)
        try:
            restored = await self._service.restore_snapshot(self._id, RestoreSnapshot(snapshot))
        finally:
            await asyncio.shield(asyncio.ensure_future(forget_snapshot(self._service, snapshot)))
        self.info = restored.session
        return restored
