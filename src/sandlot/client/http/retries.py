"""Which failed calls are made again, and after how long.

Only what cannot do harm twice: a call that the server cannot have begun, and one that is the same when it is
done twice (reads, deletes, creates under their idempotency key, execs under their id). Never a refusal.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from sandlot.domain.errors import Busy, LinkInterrupted, SandlotError, Unavailable

TRIES: Final = 3
FIRST_PAUSE_S: Final = 0.1
LONGEST_PAUSE_S: Final = 2.0
# A server that names a longer time is not waited for: the caller knows better what to do until then.
LONGEST_RETRY_AFTER_S: Final = 2.0

T = TypeVar("T")


async def with_retries(attempt: Callable[[], Awaitable[T]], *, repeatable: bool) -> T:
    tries = 0
    begun = False
    while True:
        tries += 1
        try:
            return await attempt()
        except SandlotError as error:
            # What an earlier try may have done is not undone by a later one that was refused.
            begun = error.may_have_executed = begun or error.may_have_executed
            pause = pause_before_retry(error, tries, repeatable=repeatable)
            if pause is None:
                raise
        await asyncio.sleep(pause)


def pause_before_retry(error: SandlotError, tries: int, *, repeatable: bool) -> float | None:
    """Seconds to wait after the ``tries``-th try failed; None: give up, and raise the error."""
    if tries >= TRIES:
        return None
    if isinstance(error, LinkInterrupted):
        return backoff(tries) if repeatable else None
    if isinstance(error, (Busy, Unavailable)) and (repeatable or not error.may_have_executed):
        if error.retry_after_s is None or error.retry_after_s > LONGEST_RETRY_AFTER_S:
            return None
        return max(error.retry_after_s, backoff(tries))
    return None


def backoff(tries: int) -> float:
    """Doubles each time, with half of it left to chance, so that many clients do not come back at once."""
    pause: float = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** (tries - 1))
    return pause * random.uniform(0.5, 1.0)  # noqa: S311 - spreads load, guards nothing
