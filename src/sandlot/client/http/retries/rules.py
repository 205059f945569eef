"""Which failed calls are retried, and after how long.

Only calls that do no harm when repeated: those that the server cannot have started, and those with
the same effect when made twice (reads, deletes, creates with their idempotency key, execs with
their id). A refusal is never retried.
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
# The client does not wait for a longer ``Retry-After``: the caller knows better what to do.
LONGEST_RETRY_AFTER_S: Final = 2.0
# How long to wait for a server that does not answer while a command may run on it. A restarted
# server is back by then, even on a busy machine.
MAX_OUTAGE_S: Final = 30.0
# Interactive callers give up after this many breaks instead, which takes about five seconds.
MAX_BREAKS: Final = 6

T = TypeVar("T")


async def with_retries(attempt: Callable[[], Awaitable[T]], *, repeatable: bool) -> T:
    """Call ``attempt`` until it succeeds or must not be retried.

    ``repeatable``: whether making the call twice has the same effect as making it once.
    """
    tries = 0
    may_have_begun = False
    while True:
        tries += 1
        try:
            return await attempt()
        except SandlotError as error:
            # A later try that was refused does not undo what an earlier one may have done.
            may_have_begun = error.may_have_executed = may_have_begun or error.may_have_executed
            pause = pause_before_retry(error, tries, repeatable=repeatable)
            if pause is None:
                raise
        await asyncio.sleep(pause)


def pause_before_retry(error: SandlotError, tries: int, *, repeatable: bool) -> float | None:
    """Return the seconds to wait after try number ``tries`` failed; None means to give up."""
    if tries >= TRIES:
        return None
    if isinstance(error, LinkInterrupted):
        return backoff(tries) if repeatable else None
    if isinstance(error, (Busy, Unavailable)) and (repeatable or not error.may_have_executed):
        if error.retry_after_s is None or error.retry_after_s > LONGEST_RETRY_AFTER_S:
            return None
        return max(error.retry_after_s, backoff(tries))
    return None


class OutageLimit:
    """Decides how long to retry while a server does not answer and a command may run on it.

    The limit is ``max_outage_s``. With 0 it is a number of breaks, as for interactive callers.
    """

    def __init__(self, max_outage_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._max_outage_s = max_outage_s
        self._clock = clock
        self._failing_since = 0.0
        self.breaks = 0  # in a row, without progress between them

    def reset(self) -> None:
        """Start counting again, after progress."""
        self.breaks = 0

    def exceeded(self, error: SandlotError, *, interactive: bool = False) -> bool:
        """Count one more break; return whether to give up. ``interactive``: a person is waiting."""
        if not error.retryable:
            return True
        now = self._clock()
        if self.breaks == 0:
            self._failing_since = now
        self.breaks += 1
        if interactive or not self._max_outage_s:
            return self.breaks >= MAX_BREAKS
        return now - self._failing_since >= self._max_outage_s


def backoff(tries: int) -> float:
    """Return a pause that doubles with each try.

    Half of it is random, so that many clients do not come back at the same moment.
    """
    pause: float = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** (tries - 1))
    return pause * random.uniform(0.5, 1.0)  # noqa: S311 - spreads load; not for security
