"""Sandboxes that were sessions' own, until they are gone."""

from __future__ import annotations

import asyncio

from sandlot.domain.recovery import SandboxRecord
from sandlot.worker.sandboxes import Sandboxes


class Removals:
    def __init__(self, sandboxes: Sandboxes) -> None:
        self._sandboxes = sandboxes
        self._left: dict[str, set[str]] = {}  # session → its sandboxes
        self._tasks: set[asyncio.Task[None]] = set()

    def let_go(self, session_id: str, sandbox: SandboxRecord | None) -> None:
        """The session's sandbox is to be removed: now, by a delete that waits for it, or by the sweep."""
        if sandbox is None:
            return
        self._sandboxes.doom(sandbox.id)
        self._left.setdefault(session_id, set()).add(sandbox.id)
        self.begin(sandbox.id, session_id)

    def begin(self, sandbox_id: str, session_id: str = "") -> None:
        """In the background."""

        async def removing() -> None:
            if await self._sandboxes.remove_later(sandbox_id):
                self._gone(session_id, sandbox_id)

        task = asyncio.create_task(removing(), name=f"remove {sandbox_id}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def finish(self, session_id: str) -> None:
        """What a session has left goes; if the engine fails, it is told and may be asked again."""
        for sandbox_id in list(self._left.get(session_id, ())):
            await self._sandboxes.remove(sandbox_id)
            self._gone(session_id, sandbox_id)

    @property
    def under_way(self) -> set[asyncio.Task[None]]:
        return set(self._tasks)

    def _gone(self, session_id: str, sandbox_id: str) -> None:
        left = self._left.get(session_id)
        if left is not None:
            left.discard(sandbox_id)
            if not left:
                del self._left[session_id]
