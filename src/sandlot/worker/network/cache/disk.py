"""Threads for the files of the package cache, so that the loop never waits for a disk."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


class Disk:
    def __init__(self, threads: int) -> None:
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="sandlot-packages")

    async def run(self, work: Callable[[], T]) -> T:
        """A caller that is cancelled waits for its work: the file that it uses must stay open so long."""
        running = asyncio.get_running_loop().run_in_executor(self._threads, work)
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            while not running.done():
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.wait([running])
            raise

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
