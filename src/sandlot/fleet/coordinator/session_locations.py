"""A coordinator's cache of which worker has each session.

A cached location is used for ``fresh_s`` without asking the directory, and for as long as the
directory is unreachable: an outage of Redis stops creates, but not calls to running sandboxes.
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
from sandlot.domain.session import Session, SessionState
from sandlot.domain.session_states import ended_error, lost_error, mark_worker_lost, no_session_error
from sandlot.fleet.access import token_times
from sandlot.fleet.coordinator.worker_links import WorkerLinks, as_client_error
from sandlot.fleet.directory import rules
from sandlot.fleet.directory.contract import Directory, FoundSession, WorkerRef, WorkerState

MAX_CACHED: Final = 100_000


@dataclass(frozen=True, slots=True)
class _CachedLocation:
    """``known_at``: when this was true. ``tried_at``: when the directory last failed to answer."""

    worker: WorkerRef
    tenant: str
    known_at: float
    tried_at: float = -math.inf


class SessionLocations:
    """Finds the worker of a session, from the cache or from the directory."""

    def __init__(
        self, directory: Directory, links: WorkerLinks, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._directory = directory
        self._links = links
        self._clock = clock
        # Saves one directory lookup per call in a burst of calls. Far shorter than the time after
        # which a session may move to another worker.
        self._fresh_s = token_times(directory.timings.lost_after_s).fresh_s
        self._cached: dict[str, _CachedLocation] = {}
        self._unreachable_since: float | None = None  # when the directory first failed to answer

    def now(self) -> float:
        return self._clock()

    def remember(self, session: Session, worker: WorkerRef, known_at: float | None = None) -> None:
        """Cache a session's worker. ``known_at``: when the directory named it, if not just now."""
        # A late worker may be gone by the next call, so its location is never fresh and the
        # directory is asked each time. While the directory is down, calls still go to the late
        # worker, but no client is sent straight to it.
        alive_at = self._clock() if known_at is None else known_at
        fresh_from = alive_at if worker.state is WorkerState.ALIVE else -math.inf
        if self._unreachable_since is not None and fresh_from > self._unreachable_since:
            self._unreachable_since = None  # the directory has answered since
        self._cached.pop(session.id, None)
        self._cached[session.id] = _CachedLocation(worker, session.tenant, fresh_from)
        if len(self._cached) > MAX_CACHED:
            del self._cached[next(iter(self._cached))]

    def forget(self, session_id: str) -> None:
        self._cached.pop(session_id, None)

    def known(self, session_id: str) -> tuple[WorkerRef, float] | None:
        """Return the cached worker, and by how many seconds the entry is older than ``fresh_s``.

        An outage of the directory adds at most one lease to this age, because the directory itself
        counts no more of it. No other worker can take over meanwhile, so clients may still go
        straight to the worker.
        """
        cached = self._cached.get(session_id)
        if cached is None:
            return None
        now = self._clock()
        if self._unreachable_since is not None:
            now = min(now, self._unreachable_since + self._directory.timings.lease_s)
        return cached.worker, max(0.0, now - cached.known_at - self._fresh_s)

    async def worker_of(self, tenant: str, session_id: str) -> WorkerRef:
        """Return the session's worker, to send a call to.

        Raises ``SandboxLost`` if the worker is gone, and ``Unavailable`` while it does not answer.
        """
        cached = self._cached.get(session_id)
        if cached is not None and cached.tenant != tenant:
            raise no_session_error(session_id)
        if cached is not None:
            asked_at = max(cached.known_at, cached.tried_at)
            if self._clock() - asked_at < self._fresh_s:
                return cached.worker
        try:
            found = await self.find(tenant, session_id)
        except Unavailable:
            if cached is None:
                raise
            # Do not ask again at once: a directory that hangs would delay every call.
            if cached.worker.state is WorkerState.ALIVE and self._cached.get(session_id) is cached:
                self._cached[session_id] = replace(cached, tried_at=self._clock())
            return cached.worker
        if found.session.state is SessionState.ENDED and found.worker.state is not WorkerState.ALIVE:
            raise ended_error(found.session)
        if found.worker.state is WorkerState.GONE:
            self.forget(session_id)
            raise lost_error(lost_with_worker(found), may_have_executed=False)
        self.remember(found.session, found.worker)
        # A late worker may be cut off from the directory only. Then it still serves its sessions.
        if (
            found.worker.state is WorkerState.LATE
            and not await (await self._links.to(found.worker)).answers()
        ):
            raise rules.late(found.worker.id, self._directory.timings.lost_after_s)
        return found.worker

    async def tenant_of(self, session_id: str) -> str:
        """Whom an active or lost session belongs to. That never changes, so the cache is enough."""
        cached = self._cached.get(session_id)
        if cached is not None:
            return cached.tenant
        found = await self._directory.find(session_id)
        if found is None or found.session.state is SessionState.ENDED:
            raise no_session_error(session_id)
        return found.session.tenant

    async def find(self, tenant: str, session_id: str) -> FoundSession:
        """Ask the directory, not the cache. Raises ``NotFound`` for a session of another tenant."""
        asked_at = self._clock()
        try:
            found = await self._directory.find(session_id)
        except Unavailable:
            if self._unreachable_since is None:
                self._unreachable_since = asked_at
            raise
        self._unreachable_since = None
        if found is None:
            self.forget(session_id)
        if found is None or found.session.tenant != tenant:
            raise no_session_error(session_id)
        return found

    async def explain(
        self, tenant: str, session_id: str, asked: WorkerRef, error: SandlotError
    ) -> SandlotError:
        """Return the error that a failed call to the session's worker means for the client.

        Asks the directory whether the worker is gone or the session has moved.
        """
        error = as_client_error(asked.id, error)
        if not isinstance(error, LinkInterrupted | Unavailable | NotFound) or isinstance(error, SessionEnded):
            return error
        try:
            found = await self.find(tenant, session_id)
        except SandlotError:
            return error  # keep the cached location: the directory may be down for a while
        if found.worker.id == asked.id and found.worker.state is WorkerState.ALIVE:
            return error
        self.forget(session_id)
        if found.worker.state is WorkerState.GONE and found.session.state is not SessionState.ENDED:
            return lost_error(lost_with_worker(found), may_have_executed=error.may_have_executed)
        if isinstance(error, NotFound) and found.worker.id == asked.id:
            return error
        return Unavailable(
            f"Worker {asked.id}, which had the session, no longer answers for it: {error.message}",
            retry_after_s=1.0,
            may_have_executed=error.may_have_executed,
            details={"reason": "worker_late", "worker_id": asked.id},
        )


def lost_with_worker(found: FoundSession) -> Session:
    """Return the session as lost together with its worker.

    The exact time of the loss is unknown. Use the end of the worker's lease, or the session's last
    activity if that is later.
    """
    expired_for_s = found.worker.expired_for_s
    lost_at = round(time.time() - expired_for_s) if expired_for_s else 0.0
    return mark_worker_lost(found.session, max(lost_at, found.session.last_active_at), found.worker.id)
