"""What a worker knows of its contact with the directory: its lease, when it was last heard, and whether it
may still take its sessions for its own.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from math import inf

import structlog

from sandlot.fleet.directory import Beat, Fenced, Lease

log = structlog.get_logger("sandlot.contact")

FIRST_PAUSE_S = 0.1


def pause_after(failures: int, longest_s: float) -> float:
    """Seconds until the directory is tried again: doubled each time. A part of it is by chance, so that the
    workers of a fleet do not come back all at once.
    """
    pause: float = min(longest_s, FIRST_PAUSE_S * 2.0 ** min(failures, 10))
    return pause * random.uniform(0.5, 1.0)  # noqa: S311


class Contact:
    """``clock`` counts also while the machine sleeps.

    Times are those at which a call was sent: the answer to one from before a pause says nothing about now.
    ``unsure``: a lease was over, or never was, and another worker may have taken sessions over.
    """

    def __init__(self, lease_s: float, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.lease: Lease | None = None
        self.fenced: str | None = None
        self.problem: str | None = "not joined yet"
        self.reachable = False
        self.unsure = True
        self.hurry = asyncio.Event()  # speak to the directory now
        self._lease_s = lease_s
        self._generation = ""
        self._beat_at = -inf
        self._tried_at = -inf
        self._news: asyncio.Future[None] | None = None

    @property
    def in_doubt(self) -> bool:
        """Whether calls must wait until the directory has been asked. Where it has just been found out of
        reach, they need not: an outage stops creates only.
        """
        if self.fenced is not None:
            return False  # there is none
        return (self.unsure and self.reachable) or self.overdue

    @property
    def overdue(self) -> bool:
        """Whether the directory has not been spoken to for as long as a lease lasts."""
        return self.clock() - self._tried_at > self._lease_s

    def joined(self, lease: Lease) -> None:
        self.lease = lease
        self._generation = lease.generation

    def heard(self, sent_at: float, beat: Beat) -> bool:
        """A report was answered; whether all sessions must be recorded again."""
        silence = sent_at - self._beat_at
        lost = beat.generation != self._generation or not beat.intact
        self._generation = beat.generation
        self._beat_at = self._tried_at = sent_at
        self.reachable, self.problem = True, None
        if silence > self._lease_s:
            self.unsure = True
        self.tell()
        return lost or silence > self._lease_s

    def sure(self) -> None:
        self.unsure = False
        self.tell()

    def failed(self, sent_at: float, why: str) -> None:
        if self.reachable:
            log.warning("the directory cannot be reached; sessions go on", error=why)
            self.hurry.set()  # it may have been one call
        self._tried_at = max(self._tried_at, sent_at)
        self.reachable, self.problem = False, why
        self.tell()

    def refused(self, lease: Lease | None, refusal: Fenced) -> None:
        if refusal.replaced:
            self.fence(refusal.message)
        elif self.lease is lease:
            self.lease = None
            self.hurry.set()

    def fence(self, why: str) -> None:
        """For good."""
        if self.fenced is None:
            log.error("this worker is no longer the fleet's", reason=why)
        self.fenced = self.problem = why
        self.lease = None
        self.tell()

    def tell(self) -> None:
        """Something has changed."""
        if self._news is not None:
            self._news.set_result(None)
            self._news = None

    async def news(self) -> None:
        """Until something changes."""
        if self._news is None:
            self._news = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._news)
