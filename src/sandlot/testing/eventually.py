"""Waits until a condition holds, so that tests need no fixed sleeps."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable

FIRST_PAUSE_S = 0.01
LAST_PAUSE_S = 0.1


async def eventually(
    check: Callable[[], object] | Callable[[], Awaitable[object]],
    seconds: float = 10.0,
    what: Callable[[], str] | str = "it holds",
) -> None:
    """Calls ``check`` until it returns true, and fails after ``seconds``.

    A check that began before the deadline counts. ``what`` describes the condition when it fails;
    as a callable it can say how far it got.
    """
    clock = asyncio.get_running_loop().time
    deadline = clock() + seconds
    pause = FIRST_PAUSE_S
    while True:
        began = clock()
        outcome = check()
        if await outcome if inspect.isawaitable(outcome) else outcome:
            return
        assert began < deadline, f"not within {seconds:g} s: {what if isinstance(what, str) else what()}"
        await asyncio.sleep(pause)
        pause = min(2 * pause, LAST_PAUSE_S)
