"""Writes in the background what others have put together, so that no call waits for the disk."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Final

# What is put together within this time is written at once.
GATHER_S: Final = 0.2


class BackgroundWriter:
    """Calls ``write`` soon after ``wake``, and otherwise every ``idle_s`` seconds.

    ``write`` returns 0 if all is written, or the seconds after which to try again. It must not raise: a
    writer that one failure stopped would write nothing more, and callers would wait for it.
    """

    def __init__(self, write: Callable[[], Awaitable[float]], *, idle_s: float) -> None:
        self._write = write
        self._idle_s = idle_s
        self._work, self._hurry = asyncio.Event(), asyncio.Event()
        self._flushes: list[asyncio.Future[None]] = []
        self._task: asyncio.Task[None] | None = None

    @property
    def started(self) -> bool:
        return self._task is not None

    def start(self, name: str) -> None:
        self._task = asyncio.create_task(self._run(), name=name)

    async def stop(self, within_s: float) -> None:
        """Write what there is, and wait for it this long: a disk that hangs must not hold up a stop."""
        if self._task is None:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self.flush()
        self._task.cancel()
        await asyncio.wait({self._task})
        _finish(self._flushes)

    def wake(self, *, hurry: bool = False) -> None:
        """There is something to write. ``hurry``: without waiting for more."""
        self._work.set()
        if hurry:
            self._hurry.set()

    async def flush(self) -> None:
        """Wait until everything so far is written, or cannot be written now."""
        if self._task is None or self._task.done():
            return
        done = asyncio.get_running_loop().create_future()
        self._flushes.append(done)
        self.wake(hurry=True)
        await done

    async def _run(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._idle_s):
                    await self._work.wait()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(GATHER_S):
                    await self._hurry.wait()
            self._work.clear()
            self._hurry.clear()
            flushes, self._flushes = self._flushes, []
            try:
                retry_s = await self._write()
            finally:
                _finish(flushes)
            if retry_s:
                self._work.set()
                await asyncio.sleep(retry_s)


def _finish(flushes: list[asyncio.Future[None]]) -> None:
    for done in flushes:
        if not done.done():
            done.set_result(None)
