"""Work that threads and several callers share, given up at the worst moments."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from sandlot.domain.errors import EngineProblem
from sandlot.providers.docker.images.preparing import _run_in_thread
from sandlot.providers.waiting import wait_shared


class Stalled:
    """An engine that sends nothing more."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()

    async def read(self, size: int) -> bytes:
        self.asked.set()
        await asyncio.Event().wait()
        return b""


async def test_a_stalled_export_can_be_given_up() -> None:
    content: Any = Stalled()
    reading = asyncio.create_task(_run_in_thread(content, lambda stream: stream.read(10)))
    await content.asked.wait()
    reading.cancel()
    await asyncio.sleep(0)
    reading.cancel()  # and by somebody else once more
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(reading, 5)


async def test_one_caller_that_gives_up_leaves_it_to_the_others() -> None:
    release = asyncio.Event()
    work = asyncio.create_task(release.wait())
    first, second = asyncio.create_task(wait_shared(work)), asyncio.create_task(wait_shared(work))
    await asyncio.sleep(0)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    release.set()
    assert await second


async def test_work_that_is_called_off_is_an_error_to_its_callers() -> None:
    work = asyncio.create_task(asyncio.Event().wait(), name="prepare x")
    caller = asyncio.create_task(wait_shared(work))
    await asyncio.sleep(0)
    work.cancel()
    with pytest.raises(EngineProblem, match="prepare x: the worker is shutting down"):
        await caller
