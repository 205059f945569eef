"""Removes sandboxes: a few at a time, each only once for all callers, and always to the end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Container

from sandlot.domain.errors import Conflict, EngineProblem
from sandlot.providers.waiting import wait_shared

# Removals at once. An engine that must remove hundreds together answers no calls for minutes.
MAX_REMOVALS = 8
# While a sandbox is being made, new parts of it can appear after a removal, which then repeats.
MAX_ATTEMPTS = 6
FIRST_RETRY_DELAY_S = 0.1

Release = Callable[[str], Awaitable[None]]
Remove = Callable[[str, Container[str]], Awaitable[None]]


class Removals:
    """Runs removals.

    ``release`` runs at once, even if other removals are queued. ``remove`` removes every part of a
    sandbox by name, except workspaces to keep, and ignores parts that are gone. ``being_created`` holds
    unfinished creates.
    """

    def __init__(self, release: Release, remove: Remove, being_created: Collection[str]) -> None:
        self._release = release
        self._remove = remove
        self._being_created = being_created
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._slots = asyncio.Semaphore(MAX_REMOVALS)

    def __contains__(self, sandbox_id: str) -> bool:
        return sandbox_id in self._tasks

    @property
    def under_way(self) -> set[asyncio.Task[None]]:
        return set(self._tasks.values())

    async def destroy(self, sandbox_id: str, keep: Container[str] = ()) -> None:
        task = self._tasks.get(sandbox_id)
        if task is None:
            task = asyncio.create_task(self._destroy(sandbox_id, keep), name=f"destroy {sandbox_id}")
            self._tasks[sandbox_id] = task
            task.add_done_callback(lambda _: self._tasks.pop(sandbox_id, None))
        # Shielded: once begun, a removal finishes even if its callers are cancelled.
        await wait_shared(task)

    async def wait(self, sandbox_id: str) -> None:
        """Waits until the current removal of this sandbox, if any, has succeeded or failed."""
        if (removal := self._tasks.get(sandbox_id)) is not None:
            await asyncio.wait([removal])

    async def _destroy(self, sandbox_id: str, keep: Container[str]) -> None:
        await self._release(sandbox_id)
        async with self._slots:
            for attempt in range(MAX_ATTEMPTS):
                creating = sandbox_id in self._being_created
                try:
                    await self._remove(sandbox_id, keep)
                    return
                except (Conflict, EngineProblem):
                    # A container appeared after the check and holds its volume, or a file appeared.
                    if attempt == MAX_ATTEMPTS - 1 or not creating:
                        raise
                await asyncio.sleep(FIRST_RETRY_DELAY_S * 2**attempt)
                await self._release(sandbox_id)
