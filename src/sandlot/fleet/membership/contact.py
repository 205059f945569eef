"""A worker's contact with the directory.

Keeps its lease, the time of the last answer, and whether the worker still owns its sessions.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from math import inf

import structlog

from sandlot.fleet.directory.contract import Fenced, ReportReply
from sandlot.fleet.directory.lease import Lease

log = structlog.get_logger("sandlot.contact")

FIRST_PAUSE_S = 0.1


def pause_after(failures: int, longest_s: float) -> float:
    """Return the seconds until the next try: doubled with each failure, and partly random.

    The random part keeps the workers of a fleet from coming back all at once.
    """
    pause: float = min(longest_s, FIRST_PAUSE_S * 2.0 ** min(failures, 10))
    return pause * random.uniform(0.5, 1.0)  # noqa: S311


class Contact:
    """The state of the contact. ``clock`` must go on while the machine sleeps.

    All times are those at which a call was sent, because the answer to a call from before a pause
    says nothing about the present. ``ownership_unknown`` means that the lease had expired, or the
    worker never had one, so another worker may have taken sessions over.
    """

    def __init__(self, lease_s: float, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.lease: Lease | None = None
        self.fenced: str | None = None
        self.problem: str | None = "not joined yet"
        self.reachable = False
        self.ownership_unknown = True
        self.report_now = asyncio.Event()  # report to the directory without waiting
        self._lease_s = lease_s
        self._generation = ""
        self._answered_at = -inf
        self._tried_at = -inf
        self._changed: asyncio.Future[None] | None = None

    @property
    def in_doubt(self) -> bool:
        """Whether calls must wait until the worker has asked the directory.

        They need not wait if the directory was just unreachable: an outage stops only creates.
        """
        if self.fenced is not None:
            return False  # the worker has certainly been replaced
        return (self.ownership_unknown and self.reachable) or self.overdue

    @property
    def overdue(self) -> bool:
        """Whether the worker has not called the directory for longer than a lease."""
        return self.clock() - self._tried_at > self._lease_s

    def joined(self, lease: Lease) -> None:
        self.lease = lease
        self._generation = lease.generation

    def report_answered(self, sent_at: float, reply: ReportReply) -> bool:
        """Handle the reply to a report. Returns whether all sessions must be recorded again."""
        silence = sent_at - self._answered_at
        lost = reply.generation != self._generation or not reply.intact
        self._generation = reply.generation
        self._answered_at = self._tried_at = sent_at
        self.reachable, self.problem = True, None
        if silence > self._lease_s:
            self.ownership_unknown = True
        self._notify()
        return lost or silence > self._lease_s

    def ownership_confirmed(self) -> None:
        self.ownership_unknown = False
        self._notify()

    def failed(self, sent_at: float, why: str) -> None:
        if self.reachable:
            log.warning("cannot reach the fleet's directory in Redis; sessions continue", error=why)
            self.report_now.set()  # perhaps only this one call failed
        self._tried_at = max(self._tried_at, sent_at)
        self.reachable, self.problem = False, why
        self._notify()

    def refused(self, lease: Lease | None, refusal: Fenced) -> None:
        if refusal.replaced:
            self.fence(refusal.message)
        elif self.lease is lease:
            self.lease = None
            self.report_now.set()

    def fence(self, why: str) -> None:
        """Stop this worker's membership for good."""
        if self.fenced is None:
            log.error("this worker is no longer part of the fleet", reason=why)
        self.fenced = self.problem = why
        self.lease = None
        self._notify()

    def _notify(self) -> None:
        """Wake all that wait for a change."""
        if self._changed is not None:
            self._changed.set_result(None)
            self._changed = None

    async def wait_for_change(self) -> None:
        """Wait until any part of this state changes."""
        if self._changed is None:
            self._changed = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._changed)
