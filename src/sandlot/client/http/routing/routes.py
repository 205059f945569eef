"""Routes of a session's calls: straight to its sandbox's worker, or through the coordinator.

A coordinator's answers about one session carry an ``Access``: the worker's URL and a token for that
session. While it is valid, calls go straight to the worker, and the coordinator sees none of them.
When that route fails, the coordinator, which is the server that the user configured, is the other
route:

- The client avoids a worker for a while if it cannot be reached or its connection broke.
- When a token is refused or about to expire, the client gets a new one by asking the coordinator
  for the session. Calls that need it at the same moment share one request.
- When a worker says that it does not have a session, the client checks that with the coordinator.

A call is repeated on the other route by the same rules as on one route: if it cannot have started,
or if making it twice has the same effect. For a server that gives no access, this costs one lookup
in an empty dict.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Final
from weakref import WeakValueDictionary

from sandlot.client.http.transport.connection import Connection
from sandlot.client.http.transport.errors import ReadTimedOut, is_transport_failure
from sandlot.domain.errors import InvalidRequest, NotFound, SandlotError, Unauthorized
from sandlot.domain.service import Access

MAX_SESSIONS: Final = 10_000  # beyond this, the oldest are forgotten and use the coordinator
MAX_WORKERS: Final = 1_000  # beyond this, the oldest connection is closed
# Short, because there is another route if a worker does not answer at once.
CONNECT_TIMEOUT_S: Final = 2.0
AVOID_WORKER_S: Final = 30.0
# A token is renewed when this fraction of its lifetime is left, so that a coordinator may be
# unreachable for a moment.
RENEW_AT_REMAINING: Final = 0.25
RENEW_TIMEOUT_S: Final = 5.0
PAUSE_AFTER_FAILED_RENEWAL_S: Final = 2.0
# The ``reason`` in an error's details when a session is, or may be, on another worker by now.
MOVED_REASONS: Final = frozenset({"not_here", "fenced", "in_doubt"})


@dataclass(slots=True, eq=False)
class _Worker:
    connection: Connection
    avoided_until: float = 0.0


@dataclass(slots=True, eq=False)
class _Route:
    """The direct route to one session's worker. Times are monotonic.

    ``access`` is None if the coordinator gave none; the client asks again at ``renew_at``.
    ``worker`` and ``connection`` are set by the first call.
    """

    access: Access | None
    renew_at: float
    valid_until: float
    worker: _Worker | None = None
    connection: Connection | None = None

    def expire(self) -> None:
        """Mark the access as invalid, so that the next call renews it first."""
        self.renew_at = self.valid_until = 0.0


class Routes:
    """Knows the direct route of each session, renews its access and avoids failing workers."""

    def __init__(self, server: Connection, fetch_access: Callable[[str], Awaitable[Access | None]]) -> None:
        """``server``: the configured server. ``fetch_access``: asks it for access to a session."""
        self.server = server
        self._fetch_access = fetch_access
        self._routes: dict[str, _Route] = {}
        self._workers: dict[tuple[str, str], _Worker] = {}  # by URL and worker id
        # One renewal at a time per session. A lock belongs to a loop and lives while it is used.
        self._renewal_locks: WeakValueDictionary[tuple[asyncio.AbstractEventLoop, str], asyncio.Lock] = (
            WeakValueDictionary()
        )

    def record(self, session_id: str, access: Access) -> None:
        """Store the access that the coordinator gave for a session."""
        access = replace(access, url=access.url.rstrip("/"))
        remaining_s = access.expires_at - time.time()
        now = time.monotonic()
        if remaining_s > 0:
            self._store(
                session_id, _Route(access, now + remaining_s * (1 - RENEW_AT_REMAINING), now + remaining_s)
            )
        else:
            # It is new, so our clock differs from the coordinator's. Use it until it is refused.
            self._store(session_id, _Route(access, math.inf, math.inf))

    def forget(self, session_id: str) -> None:
        self._routes.pop(session_id, None)

    def knows(self, session_id: str) -> bool:
        return session_id in self._routes

    async def direct_to(self, session_id: str) -> Connection | None:
        """Return a connection straight to the session's worker; None means to use ``server``."""
        route = self._routes.get(session_id)
        if route is not None and not self._is_avoided(route) and time.monotonic() >= route.renew_at:
            route = await self._renew(session_id, route)
        if (
            route is None
            or route.access is None
            or time.monotonic() >= route.valid_until
            or self._is_avoided(route)
        ):
            return None
        if route.worker is None or route.worker is not self._workers.get(_address(route.access)):
            worker = self._workers.get(_address(route.access)) or await self._new_worker(route.access)
            if worker is None:
                self.forget(session_id)
                return None
            route.worker, route.connection = worker, worker.connection.with_key(route.access.token)
        return route.connection

    async def reroute_after(
        self, session_id: str, used: Connection, error: SandlotError, *, repeatable: bool, again: bool
    ) -> bool:
        """Decide after a failed call over ``used`` whether to repeat it on another route.

        ``direct_to`` then returns the new route. ``again``: the call was rerouted before, and
        renewed access did not help.
        """
        if used is self.server:
            return False
        safe = repeatable or not error.may_have_executed
        if isinstance(error, ReadTimedOut) and not repeatable:
            return False  # a command may be silent for long on a healthy worker
        if is_transport_failure(error):
            if (worker := self._workers.get(_address(used))) is not None:
                worker.avoided_until = time.monotonic() + AVOID_WORKER_S
            return safe
        route = self._routes.get(session_id)
        current = route if route is not None and route.connection is used else None
        if isinstance(error, NotFound):
            return await self._has_moved(session_id, used, route, current)
        if isinstance(error, Unauthorized) or error.details.get("reason") in MOVED_REASONS:
            if again:
                self._pause_direct(session_id)
            elif current is not None:
                current.expire()
            return safe
        return False

    async def close(self) -> None:
        self._routes.clear()
        while self._workers:
            await self._workers.popitem()[1].connection.close()

    # known routes

    def _store(self, session_id: str, route: _Route) -> None:
        # Removed and inserted again, so that the first entry is always the oldest.
        self._routes.pop(session_id, None)
        if len(self._routes) >= MAX_SESSIONS:
            self._routes.pop(next(iter(self._routes)), None)
        self._routes[session_id] = route

    def _pause_direct(self, session_id: str) -> None:
        """Use the coordinator for a while, then ask it for access again."""
        self._store(session_id, _Route(None, time.monotonic() + AVOID_WORKER_S, math.inf))

    def _is_avoided(self, route: _Route) -> bool:
        worker = None if route.access is None else self._workers.get(_address(route.access))
        return worker is not None and time.monotonic() < worker.avoided_until

    async def _has_moved(
        self, session_id: str, used: Connection, route: _Route | None, current: _Route | None
    ) -> bool:
        """Whether a session may have moved, after a worker answered "not found".

        The worker does not know the session, or an exec or shell in it. That answer is final if the
        coordinator still names this worker, or says that there is no such session.
        """
        if current is None:
            return route is None or route.access is None or _address(route.access) != _address(used)
        current.expire()
        route = await self._renew(session_id, current)
        return route is not None and (
            route is current or route.access is None or _address(route.access) != _address(used)
        )

    async def _renew(self, session_id: str, stale: _Route) -> _Route | None:
        """Ask the coordinator for new access and return the session's route.

        Another call may have done so meanwhile. Returns ``stale`` if the request fails.
        """
        key = (asyncio.get_running_loop(), session_id)
        lock = self._renewal_locks.setdefault(key, asyncio.Lock())
        async with lock:
            route = self._routes.get(session_id)
            if route is not stale or time.monotonic() < stale.renew_at:
                return route
            try:
                async with asyncio.timeout(RENEW_TIMEOUT_S):
                    access = await self._fetch_access(session_id)
            except NotFound:
                self.forget(session_id)
            except (SandlotError, TimeoutError):
                stale.renew_at = time.monotonic() + PAUSE_AFTER_FAILED_RENEWAL_S
            else:
                if access is None:
                    self._pause_direct(session_id)
            return self._routes.get(session_id)

    async def _new_worker(self, access: Access) -> _Worker | None:
        """Connect to a worker; return None if the token must not be sent there.

        Traffic that was encrypted on the way to the coordinator stays encrypted on the way to a
        worker: from https only to https. A loopback address means the coordinator's own machine.
        That is our machine only if the coordinator is on loopback too.
        """
        try:
            connection = Connection(
                access.url,
                connect_timeout_s=CONNECT_TIMEOUT_S,
                trust=self.server.trust,
                worker=access.worker,
            )
        except InvalidRequest:
            return None
        if connection.loopback and not self.server.loopback:
            return None
        if self.server.secure and not (connection.secure or connection.loopback):
            return None
        if len(self._workers) >= MAX_WORKERS:
            oldest = self._workers.pop(next(iter(self._workers)))
            await oldest.connection.close()
        return self._workers.setdefault(_address(access), _Worker(connection))


def _address(worker: Access | Connection) -> tuple[str, str]:
    return worker.url, worker.worker
