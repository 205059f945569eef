"""Which failed calls are made again, and after how long.

Only what cannot do harm twice: a call that the server cannot have begun, and one that is the same when it is
done twice (reads, deletes, creates under their idempotency key, execs under their id). Never a refusal.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from sandlot.domain.errors import Busy, LinkInterrupted, SandlotError, Unavailable

TRIES: Final = 3
FIRST_PAUSE_S: Final = 0.1
LONGEST_PAUSE_S: Final = 2.0
# A server that names a longer time is not waited for: the caller knows better what to do until then.
LONGEST_RETRY_AFTER_S: Final = 2.0
# A server that does not answer while a command may run on it is given up after so much time: one that is
# started again is back by then, on a busy machine too. Who is in a hurry counts breaks; some five seconds.
AWAY_S: Final = 30.0
MAX_BREAKS: Final = 6

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


class Patience:
    """With a server that does not answer while a command may run on it, for ``away_s``; 0: in a hurry."""

    def __init__(self, away_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._away_s = away_s
        self._clock = clock
        self._since = 0.0
        self.breaks = 0  # in a row, with nothing learnt between them

    def renew(self) -> None:
        self.breaks = 0

    def over(self, error: SandlotError, *, hurried: bool = False) -> bool:
        """After one more break. ``hurried``: somebody waits who has better things to do."""
        if not error.retryable:
            return True
        now = self._clock()
        if self.breaks == 0:
            self._since = now
        self.breaks += 1
        if hurried or not self._away_s:
            return self.breaks >= MAX_BREAKS
        return now - self._since >= self._away_s


def backoff(tries: int) -> float:
    """Doubles each time, with half of it left to chance, so that many clients do not come back at once."""
    pause: float = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** (tries - 1))
    return pause * random.uniform(0.5, 1.0)  # noqa: S311 - spreads load, guards nothing
