"""Removals of sandboxes: each once, however many ask, a few at a time, and to its end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection

from sandlot.domain.errors import Conflict, EngineProblem
from sandlot.providers.docker.engine import shared

# Removals under way at once: an engine that is told to remove hundreds together answers nobody for minutes.
MAX_REMOVALS = 8
# While a sandbox is still being made, parts of it come up behind a removal, which is then repeated.
REPEATS = 6
FIRST_PAUSE_S = 0.1

Step = Callable[[str], Awaitable[None]]


class Removals:
    """``let_go``: done at once, however many removals are before this one. ``remove``: everything by its
    names, and no error for what is gone. ``making``: sandboxes that are being made just now.
    """

    def __init__(self, let_go: Step, remove: Step, making: Collection[str]) -> None:
        self._let_go = let_go
        self._remove = remove
        self._making = making
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._slots = asyncio.Semaphore(MAX_REMOVALS)

    def __contains__(self, sandbox_id: str) -> bool:
        return sandbox_id in self._tasks

    @property
    def under_way(self) -> set[asyncio.Task[None]]:
        return set(self._tasks.values())

    async def destroy(self, sandbox_id: str) -> None:
        task = self._tasks.get(sandbox_id)
        if task is None:
            task = asyncio.create_task(self._destroy(sandbox_id), name=f"destroy {sandbox_id}")
            self._tasks[sandbox_id] = task
            task.add_done_callback(lambda _: self._tasks.pop(sandbox_id, None))
        # Shielded: a removal that has begun is finished, whoever waits for it.
        await shared(task)

    async def wait(self, sandbox_id: str) -> None:
        """Until the one that is under way has ended, well or not."""
        if (removal := self._tasks.get(sandbox_id)) is not None:
            await asyncio.wait([removal])

    async def _destroy(self, sandbox_id: str) -> None:
        await self._let_go(sandbox_id)
        async with self._slots:
            for repeat in range(REPEATS):
                being_made = sandbox_id in self._making
                try:
                    await self._remove(sandbox_id)
                    return
                except (Conflict, EngineProblem):
                    # The volume of a container that came after the look for one, or a file in the folder.
                    if repeat == REPEATS - 1 or not being_made:
                        raise
                await asyncio.sleep(FIRST_PAUSE_S * 2**repeat)
                await self._let_go(sandbox_id)
