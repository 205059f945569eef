"""How long a create, or a command in a thread, waits for a server that recovers by itself.

A fleet recovers without help: its directory settles within 10 s of a restart, and a worker or a
coordinator is back within 30 s. A caller that asks for a sandbox meanwhile does not get an error
503. It waits as long as the server says that a retry makes sense, and a log message says why. Two
cases are not waited for: what only the caller can fix (a quota, a full server), and a server that
has never answered, because there may be none.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from sandlot.client.http.retries.rules import TRIES, backoff, pause_before_retry
from sandlot.client.http.transport.connection import Connection
from sandlot.client.http.transport.errors import is_transport_failure
from sandlot.domain.errors import LinkInterrupted, SandlotError, StorageFull, Unavailable

log = logging.getLogger("sandlot.client")

# The client does not wait for a longer ``Retry-After``: the caller knows better what to do.
LONGEST_RETRY_AFTER_S: Final = 30.0
WARN_EVERY_S: Final = 10.0
# Reasons of refusals that last until sessions are deleted, or that already waited in a queue.
_NO_WAIT_REASONS: Final = frozenset({"capacity", "queue"})

T = TypeVar("T")


class Patience:
    """Decides how long one request waits for the server to recover.

    With ``patience_s`` 0 it does not wait, and is retried as often as any other call.
    """

    def __init__(
        self, connection: Connection, patience_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._connection = connection
        self._patience_s = patience_s
        self._clock = clock
        self._failing_since: float | None = None
        self._warned_at: float | None = None
        self._tries = 0

    def pause_after(self, error: SandlotError) -> float | None:
        """Return the seconds until the next try; None means that the caller should raise the error.

        The request must be one that can be sent twice.
        """
        now = self._clock()
        self._tries += 1
        if self._failing_since is None:
            self._failing_since = now
        waited = now - self._failing_since
        retry_after_s = error.retry_after_s or 0.0
        if not self._is_temporary(error):
            return pause_before_retry(error, self._tries, repeatable=True)
        if waited >= self._patience_s or retry_after_s > LONGEST_RETRY_AFTER_S:
            return None
        if self._tries >= TRIES and (self._warned_at is None or now - self._warned_at >= WARN_EVERY_S):
            self._warned_at = now
            log.warning(
                "%s is not available. Retrying for up to %.0f s: %s",
                self._connection.url,
                self._patience_s - waited,
                error.message,
            )
        return max(retry_after_s, backoff(self._tries))

    def succeeded(self) -> None:
        """Log that the server answers again, if a warning said that it did not."""
        if self._warned_at is not None and self._failing_since is not None:
            log.warning(
                "%s is available again after %.1f s",
                self._connection.url,
                self._clock() - self._failing_since,
            )

    def _is_temporary(self, error: SandlotError) -> bool:
        if not self._patience_s or not error.retryable:
            return False
        if not isinstance(error, (Unavailable, LinkInterrupted, StorageFull)):
            return False
        if is_transport_failure(error) and not self._connection.has_answered:
            return False
        return error.details.get("reason") not in _NO_WAIT_REASONS


async def until_created(attempt: Callable[[], Awaitable[T]], patience: Patience) -> T:
    """Repeat ``attempt``, which uses one idempotency key, until the server accepts it."""
    may_have_begun = False
    while True:
        try:
            result = await attempt()
        except SandlotError as error:
            # A later try that was refused does not undo what an earlier one may have done.
            may_have_begun = error.may_have_executed = may_have_begun or error.may_have_executed
            pause = patience.pause_after(error)
            if pause is None:
                raise
        else:
            patience.succeeded()
            return result
        await asyncio.sleep(pause)
