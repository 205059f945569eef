"""Removes the sandboxes that sessions no longer use, and the files of sessions that have ended."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from sandlot.domain.recovery import SandboxRecord
from sandlot.worker.store.sandboxes import Sandboxes
from sandlot.worker.workspaces.workspaces import Workspaces


@dataclass(frozen=True, slots=True)
class Released:
    """What a session no longer has. ``workspace_id`` is empty if the session keeps its files."""

    sandbox_id: str = ""
    workspace_id: str = ""


class Removals:
    def __init__(self, sandboxes: Sandboxes, workspaces: Workspaces) -> None:
        self._sandboxes = sandboxes
        self._workspaces = workspaces
        self._pending: dict[str, set[Released]] = {}  # by the session's id
        self._tasks: set[asyncio.Task[None]] = set()

    def release(self, session_id: str, sandbox: SandboxRecord | None, workspace_id: str = "") -> None:
        """Start to remove a session's sandbox, and its workspace if one is named.

        If that fails, a delete that waits or the sweep finishes it.
        """
        if sandbox is not None:
            self._sandboxes.mark_for_removal(sandbox.id)
        released = Released("" if sandbox is None else sandbox.id, workspace_id)
        if released != Released():
            self._pending.setdefault(session_id, set()).add(released)
            self._start(session_id, released)

    def start(self, sandbox_id: str) -> None:
        """Remove a sandbox in the background."""
        self._start("", Released(sandbox_id))

    def _start(self, session_id: str, released: Released) -> None:
        async def removing() -> None:
            if not await self._have_let_go(session_id, released):
                return  # a delete that waits, or the sweep, finishes it
            gone = not released.sandbox_id or await self._sandboxes.try_remove(released.sandbox_id)
            if gone and (
                not released.workspace_id or await self._workspaces.try_delete(released.workspace_id)
            ):
                self._mark_removed(session_id, released)

        task = asyncio.create_task(removing(), name=f"remove {released.sandbox_id or released.workspace_id}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _have_let_go(self, session_id: str, released: Released) -> bool:
        """Whether the session's other sandboxes are gone. One of them may still have this workspace."""
        if not released.workspace_id:
            return True
        others = [
            other.sandbox_id
            for other in self._pending.get(session_id, ())
            if other.sandbox_id and other != released
        ]
        return all([await self._sandboxes.try_remove(sandbox_id) for sandbox_id in others])

    async def finish(self, session_id: str) -> None:
        """Remove everything that a session has released.

        Raises if the engine fails; call it again then.
        """
        pending = list(self._pending.get(session_id, ()))
        for released in pending:  # all of them first: one may still have the workspace of another
            if released.sandbox_id:
                await self._sandboxes.remove(released.sandbox_id)
        for released in pending:
            if released.workspace_id:
                await self._workspaces.delete(released.workspace_id)
            self._mark_removed(session_id, released)

    def has_pending(self, session_id: str) -> bool:
        """Whether anything that the session has released is not removed yet."""
        return session_id in self._pending

    @property
    def under_way(self) -> set[asyncio.Task[None]]:
        return set(self._tasks)

    def _mark_removed(self, session_id: str, released: Released) -> None:
        pending = self._pending.get(session_id)
        if pending is not None:
            pending.discard(released)
            if not pending:
                del self._pending[session_id]
