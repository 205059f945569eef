"""Tasks that run in the background as long as their owner, and tasks side by side."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Final

CANCEL_AGAIN_S: Final = 0.2


class BackgroundTasks:
    def __init__(self) -> None:
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, work: Coroutine[Any, Any, None], name: str) -> None:
        self._tasks.append(asyncio.create_task(work, name=name))

    async def cancel(self) -> None:
        """Cancel all tasks, and wait until they have ended."""
        while running := [task for task in self._tasks if not task.done()]:
            # Repeat, because a Redis call that is just ending may swallow a cancellation.
            for task in running:
                task.cancel()
            await asyncio.wait(running, timeout=CANCEL_AGAIN_S)


async def side_by_side(*works: Coroutine[Any, Any, None]) -> None:
    """Run all to their ends. If one fails, the others are cancelled, and its error is raised as it is."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
