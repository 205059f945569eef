"""How long a create, or a command in a thread, waits for a server that will be well again.

A fleet heals by itself: its directory settles within ten seconds of a restart, a worker or a coordinator is
back within thirty. Whoever asks for a sandbox meanwhile is not told "503", but waits, as long as the server
says that coming back is worth it, and is told what for. Two things are not waited for: what only the caller
can mend (a quota, a full server), and a server that never answered, which may not be one.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from sandlot.client.http.connection import Connection
from sandlot.client.http.problems import is_of_the_way
from sandlot.client.http.retries import TRIES, backoff, pause_before_retry
from sandlot.domain.errors import LinkInterrupted, SandlotError, StorageFull, Unavailable

log = logging.getLogger("sandlot.client")

# A longer time that a server names is not waited for: the caller knows better what to do until then.
LONGEST_RETRY_AFTER_S: Final = 30.0
TOLD_EVERY_S: Final = 10.0
# ``reason`` of refusals that end when somebody deletes sessions, or that were waited for in a queue.
_NOT_WAITED_FOR: Final = frozenset({"capacity", "queue"})

T = TypeVar("T")


class Waiting:
    """One request's patience. ``within_s`` 0: none, and it is tried as often as any other call."""

    def __init__(
        self, connection: Connection, within_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._connection = connection
        self._within_s = within_s
        self._clock = clock
        self._since: float | None = None
        self._told_at: float | None = None
        self._tries = 0

    def pause_after(self, error: SandlotError) -> float | None:
        """Seconds until the next try, of a request that bears being sent twice; None: raise the error."""
        now = self._clock()
        self._tries += 1
        if self._since is None:
            self._since = now
        waited = now - self._since
        named = error.retry_after_s or 0.0
        if not self._heals(error):
            return pause_before_retry(error, self._tries, repeatable=True)
        if waited >= self._within_s or named > LONGEST_RETRY_AFTER_S:
            return None
        if self._tries >= TRIES and (self._told_at is None or now - self._told_at >= TOLD_EVERY_S):
            self._told_at = now
            log.warning(
                "waiting for %s, for %.0f s more at most: %s",
                self._connection.url,
                self._within_s - waited,
                error.message,
            )
        return max(named, backoff(self._tries))

    def done(self) -> None:
        if self._told_at is not None and self._since is not None:
            log.warning("%s answers again, after %.1f s", self._connection.url, self._clock() - self._since)

    def _heals(self, error: SandlotError) -> bool:
        if not self._within_s or not error.retryable:
            return False
        if not isinstance(error, (Unavailable, LinkInterrupted, StorageFull)):
            return False
        if is_of_the_way(error) and not self._connection.has_answered:
            return False
        return error.details.get("reason") not in _NOT_WAITED_FOR


async def until_open(attempt: Callable[[], Awaitable[T]], waiting: Waiting) -> T:
    """``attempt`` under one idempotency key, until it is answered."""
    begun = False
    while True:
        try:
            result = await attempt()
        except SandlotError as error:
            # What an earlier try may have done is not undone by a later one that was refused.
            begun = error.may_have_executed = begun or error.may_have_executed
            pause = waiting.pause_after(error)
            if pause is None:
                raise
        else:
            waiting.done()
            return result
        await asyncio.sleep(pause)
