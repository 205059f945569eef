"""Measures what sessions' sandboxes use. It is no use of a session, and wakes none."""

from __future__ import annotations

import time
from collections.abc import Callable

from sandlot.domain.capacity.usage import SandboxUsage
from sandlot.domain.errors import NotFound, Unavailable
from sandlot.domain.session import SessionState
from sandlot.providers.base import Provider, Stats
from sandlot.worker.sessions.live_session import LiveSession

_NOTHING = Stats(memory_bytes=0, cpu_ns=0, pids=0)


class Usage:
    def __init__(self, provider: Provider, clock: Callable[[], float] = time.time) -> None:
        self._provider = provider
        self._clock = clock

    async def of(self, live_session: LiveSession) -> SandboxUsage:
        session = live_session.session
        stats = await self._stats(live_session)
        workspace = session.workspace
        store = self._provider.workspaces
        return SandboxUsage(
            measured_at=self._clock(),
            cpu_s=stats.cpu_ns / 1e9,
            cpus=session.limits.cpus,
            memory_bytes=stats.memory_bytes,
            memory_limit_bytes=session.limits.memory_bytes,
            processes=stats.pids,
            processes_limit=session.limits.pids,
            disk_bytes=None if workspace is None else await store.used_bytes(workspace.id),
            disk_limit_bytes=None if workspace is None else workspace.quota_bytes,
        )

    async def _stats(self, live_session: LiveSession) -> Stats:
        session = live_session.session
        if session.state is not SessionState.ACTIVE or session.sandbox_id is None:
            return _NOTHING
        try:
            return await self._provider.stats(session.sandbox_id)
        except NotFound as error:
            raise Unavailable(
                f"The sandbox of session {session.id} cannot be measured now: it is being replaced, or is "
                "gone. Ask for the session, which says more.",
                retry_after_s=1.0,
            ) from error
