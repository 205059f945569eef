"""Waiting for what must come true, instead of sleeping for as long as it might take."""

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
    """Asks until the check holds; one that began in time counts. ``what`` was waited for, as far as it came."""
    clock = asyncio.get_running_loop().time
    deadline = clock() + seconds
    pause = FIRST_PAUSE_S
    while True:
        began = clock()
        held = check()
        if await held if inspect.isawaitable(held) else held:
            return
        assert began < deadline, f"not within {seconds:g} s: {what if isinstance(what, str) else what()}"
        await asyncio.sleep(pause)
        pause = min(2 * pause, LAST_PAUSE_S)
