"""Where each session is, as a coordinator knows it: asked of the directory, remembered for a while.

What is remembered is used without asking for ``fresh_s``, and for as long as the directory cannot be asked:
an outage of Redis stops creates, not the sandboxes that run.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from sandlot.domain.errors import (
    LinkInterrupted,
    NotFound,
    SandlotError,
    SessionEnded,
    Unavailable,
)
from sandlot.domain.session import (
    Session,
    SessionState,
    ended_error,
    lost_error,
    no_session,
    without_worker,
)
from sandlot.fleet import rules
from sandlot.fleet.access import token_times
from sandlot.fleet.directory import Directory, Found, WorkerAt, WorkerState
from sandlot.fleet.links import WorkerLinks, of_worker

MAX_REMEMBERED: Final = 100_000


@dataclass(frozen=True, slots=True)
class _Remembered:
    """``at``: when this was so. ``tried_at``: when the directory was last asked, and did not answer."""

    worker: WorkerAt
    tenant: str
    at: float
    tried_at: float = -math.inf


class Whereabouts:
    def __init__(
        self, directory: Directory, links: WorkerLinks, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._directory = directory
        self._links = links
        self._clock = clock
        # Spares the directory a question for each of a burst of calls. Far shorter than the time after which
        # a session may be given to another worker.
        self._fresh_s = token_times(directory.timings.lost_after_s).fresh_s
        self._remembered: dict[str, _Remembered] = {}
        self._away_at: float | None = None  # when the directory was first asked in vain

    def now(self) -> float:
        return self._clock()

    def remember(self, session: Session, worker: WorkerAt, known_at: float | None = None) -> None:
        """``known_at``: when the directory was asked for the worker, if not just now."""
        # One that is late is asked about each time: it may be gone by the next. Known to be late, it is used
        # while the directory is away, and no client is sent straight to it.
        alive_at = self._clock() if known_at is None else known_at
        at = alive_at if worker.state is WorkerState.ALIVE else -math.inf
        if self._away_at is not None and at > self._away_at:
            self._away_at = None  # it has answered since
        self._remembered.pop(session.id, None)
        self._remembered[session.id] = _Remembered(worker, session.tenant, at)
        if len(self._remembered) > MAX_REMEMBERED:
            del self._remembered[next(iter(self._remembered))]

    def forget(self, session_id: str) -> None:
        self._remembered.pop(session_id, None)

    def known(self, session_id: str) -> tuple[WorkerAt, float] | None:
        """Its worker, and by how many seconds what is known of it is older than ``fresh_s``. Of an outage of
        the directory one lease counts, as it does to the directory itself: nobody can take over meanwhile,
        and clients go straight as before.
        """
        remembered = self._remembered.get(session_id)
        if remembered is None:
            return None
        now = self._clock()
        if self._away_at is not None:
            now = min(now, self._away_at + self._directory.timings.lease_s)
        return remembered.worker, max(0.0, now - remembered.at - self._fresh_s)

    async def of(self, tenant: str, session_id: str) -> WorkerAt:
        """A worker that can be asked. ``SandboxLost`` if it is gone, ``Unavailable`` while it is silent."""
        remembered = self._remembered.get(session_id)
        if remembered is not None and remembered.tenant != tenant:
            raise no_session(session_id)
        if remembered is not None:
            asked_at = max(remembered.at, remembered.tried_at)
            if self._clock() - asked_at < self._fresh_s:
                return remembered.worker
        try:
            found = await self.find(tenant, session_id)
        except Unavailable:
            if remembered is None:
                raise
            # Not asked again at once: a directory that hangs would hold up every call.
            if (
                remembered.worker.state is WorkerState.ALIVE
                and self._remembered.get(session_id) is remembered
            ):
                self._remembered[session_id] = replace(remembered, tried_at=self._clock())
            return remembered.worker
        if found.session.state is SessionState.ENDED and found.worker.state is not WorkerState.ALIVE:
            raise ended_error(found.session)
        if found.worker.state is WorkerState.GONE:
            self.forget(session_id)
            raise lost_error(lost_with_worker(found), may_have_executed=False)
        self.remember(found.session, found.worker)
        # Late: it may be cut off from the directory alone, and then it serves as before.
        if (
            found.worker.state is WorkerState.LATE
            and not await (await self._links.to(found.worker)).answers()
        ):
            raise rules.late(found.worker.id, self._directory.timings.lost_after_s)
        return found.worker

    async def find(self, tenant: str, session_id: str) -> Found:
        asked_at = self._clock()
        try:
            found = await self._directory.find(session_id)
        except Unavailable:
            if self._away_at is None:
                self._away_at = asked_at
            raise
        self._away_at = None
        if found is None or found.session.tenant != tenant:
            self.forget(session_id)
            raise no_session(session_id)
        return found

    async def explained(
        self, tenant: str, session_id: str, asked: WorkerAt, error: SandlotError
    ) -> SandlotError:
        """What a failed call on a session's worker means, with the directory's help."""
        error = of_worker(asked.id, error)
        if not isinstance(error, LinkInterrupted | Unavailable | NotFound) or isinstance(error, SessionEnded):
            return error
        try:
            found = await self.find(tenant, session_id)
        except SandlotError:
            return error  # what is remembered stays: the directory may be away for a while
        if found.worker.id == asked.id and found.worker.state is WorkerState.ALIVE:
            return error
        self.forget(session_id)
        if found.worker.state is WorkerState.GONE and found.session.state is not SessionState.ENDED:
            return lost_error(lost_with_worker(found), may_have_executed=error.may_have_executed)
        if isinstance(error, NotFound) and found.worker.id == asked.id:
            return error
        return Unavailable(
            f"worker {asked.id}, which had the session, does not answer as it did: {error.message}",
            retry_after_s=1.0,
            may_have_executed=error.may_have_executed,
            details={"reason": "worker_late", "worker_id": asked.id},
        )


def lost_with_worker(found: Found) -> Session:
    """The session as it is since its worker is gone. When that was nobody saw: the worker's lease was over
    then, and the session had been active before.
    """
    at = round(time.time() - found.worker.over_s) if found.worker.over_s else 0.0
    return without_worker(found.session, max(at, found.session.last_active_at), found.worker.id)
