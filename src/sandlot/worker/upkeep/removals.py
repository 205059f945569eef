"""Removes the sandboxes that sessions no longer use."""

from __future__ import annotations

import asyncio

from sandlot.domain.recovery import SandboxRecord
from sandlot.worker.store.sandboxes import Sandboxes


class Removals:
    def __init__(self, sandboxes: Sandboxes) -> None:
        self._sandboxes = sandboxes
        self._pending: dict[str, set[str]] = {}  # session id → ids of its released sandboxes
        self._tasks: set[asyncio.Task[None]] = set()

    def release(self, session_id: str, sandbox: SandboxRecord | None) -> None:
        """Start to remove a session's sandbox.

        If that fails, a delete that waits or the sweep finishes it.
        """
        if sandbox is None:
            return
        self._sandboxes.mark_for_removal(sandbox.id)
        self._pending.setdefault(session_id, set()).add(sandbox.id)
        self.start(sandbox.id, session_id)

    def start(self, sandbox_id: str, session_id: str = "") -> None:
        """Remove a sandbox in the background."""

        async def removing() -> None:
            if await self._sandboxes.try_remove(sandbox_id):
                self._mark_removed(session_id, sandbox_id)

        task = asyncio.create_task(removing(), name=f"remove {sandbox_id}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def finish(self, session_id: str) -> None:
        """Remove all released sandboxes of a session.

        Raises if the engine fails; call it again then.
        """
        for sandbox_id in list(self._pending.get(session_id, ())):
            await self._sandboxes.remove(sandbox_id)
            self._mark_removed(session_id, sandbox_id)

    @property
    def under_way(self) -> set[asyncio.Task[None]]:
        return set(self._tasks)

    def _mark_removed(self, session_id: str, sandbox_id: str) -> None:
        pending = self._pending.get(session_id)
        if pending is not None:
            pending.discard(sandbox_id)
            if not pending:
                del self._pending[session_id]
