"""Which way a session's calls take: straight to the worker that has its sandbox, or through the server that
was named, a coordinator, which passes them on.

Answers of a coordinator about one session carry an ``Access``: the worker's URL and a token for that session.
As long as it is good, calls go there, and the coordinator sees none of them. Whatever goes wrong on that way,
the coordinator is the other one:

- A worker that cannot be reached, or whose connection broke, is left alone for a while.
- A token that is refused, or nearly over, is exchanged for a new one by asking the coordinator for the
  session; calls that need it at once wait for one question.
- What a worker says about a session that it may not have (any more) is checked with the coordinator.

A call is made again on the other way by the rules that hold on one: if it cannot have begun, or if it is the
same when it is done twice. A server that gives no access costs one look into an empty dict.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Final
from weakref import WeakValueDictionary

from sandlot.client.http.connection import Connection
from sandlot.client.http.problems import Silent, is_of_the_way
from sandlot.domain.errors import InvalidRequest, NotFound, SandlotError, Unauthorized
from sandlot.domain.service import Access

MAX_SESSIONS: Final = 10_000  # those whose access is oldest are forgotten, and go through the coordinator
MAX_WORKERS: Final = 1_000  # connections to others are closed
# There is another way: one that does not answer at once is not waited for.
CONNECT_TIMEOUT_S: Final = 2.0
LEFT_ALONE_S: Final = 30.0
# A token is exchanged when this part of its life is left, so that a coordinator may be away for a moment.
RENEWED_BEFORE: Final = 0.25
RENEWED_WITHIN_S: Final = 5.0
PAUSE_AFTER_FAILED_RENEWAL_S: Final = 2.0
# How a worker says that the session is another's by now, or may be: ``reason`` in the error's details.
MOVED: Final = frozenset({"not_here", "fenced", "in_doubt"})


@dataclass(slots=True, eq=False)
class _Worker:
    connection: Connection
    left_alone_until: float = 0.0


@dataclass(slots=True, eq=False)
class _Held:
    """``access`` None: the coordinator gave none when it was last asked; it is asked again at ``renew_at``.

    Times are monotonic. ``worker`` and ``connection`` are there after the first call.
    """

    access: Access | None
    renew_at: float
    over_at: float
    worker: _Worker | None = None
    connection: Connection | None = None

    def put_out(self) -> None:
        """Not good any more: the next call asks for another one first."""
        self.renew_at = self.over_at = 0.0


class Ways:
    def __init__(self, door: Connection, ask: Callable[[str], Awaitable[Access | None]]) -> None:
        """``door``: the server that was named. ``ask`` asks it for a session, and for new access to it."""
        self.door = door
        self._ask = ask
        self._held: dict[str, _Held] = {}
        self._workers: dict[tuple[str, str], _Worker] = {}  # by address and id
        # One question at a time for each session; a lock belongs to a loop, and lives while it is waited for.
        self._asking: WeakValueDictionary[tuple[asyncio.AbstractEventLoop, str], asyncio.Lock] = (
            WeakValueDictionary()
        )

    def saw(self, session_id: str, access: Access) -> None:
        """The coordinator gave it."""
        access = replace(access, url=access.url.rstrip("/"))
        left = access.expires_at - time.time()
        now = time.monotonic()
        if left > 0:
            self._hold(session_id, _Held(access, now + left * (1 - RENEWED_BEFORE), now + left))
        else:
            # It is new, so our clock is not the coordinator's: it is used until a worker refuses it.
            self._hold(session_id, _Held(access, math.inf, math.inf))

    def forget(self, session_id: str) -> None:
        self._held.pop(session_id, None)

    def knows(self, session_id: str) -> bool:
        return session_id in self._held

    async def of(self, session_id: str) -> Connection | None:
        """Straight to the session; None: through the door."""
        held = self._held.get(session_id)
        if held is not None and not self._left_alone(held) and time.monotonic() >= held.renew_at:
            held = await self._renewed(session_id, held)
        if held is None or held.access is None or time.monotonic() >= held.over_at or self._left_alone(held):
            return None
        if held.worker is None or held.worker is not self._workers.get(_at(held.access)):
            worker = self._workers.get(_at(held.access)) or await self._new_worker(held.access)
            if worker is None:
                self.forget(session_id)
                return None
            held.worker, held.connection = worker, worker.connection.with_key(held.access.token)
        return held.connection

    async def turn(
        self, session_id: str, used: Connection, error: SandlotError, *, repeatable: bool, again: bool
    ) -> bool:
        """After a call over ``used`` failed: whether to make it again, on the way that ``of`` gives now.

        ``again``: it was turned before, and renewed access did not help.
        """
        if used is self.door:
            return False
        safe = repeatable or not error.may_have_executed
        if isinstance(error, Silent) and not repeatable:
            return False  # a command may be silent for long, and its worker well
        if is_of_the_way(error):
            if (worker := self._workers.get(_at(used))) is not None:
                worker.left_alone_until = time.monotonic() + LEFT_ALONE_S
            return safe
        held = self._held.get(session_id)
        current = held if held is not None and held.connection is used else None
        if isinstance(error, NotFound):
            return await self._is_elsewhere(session_id, used, held, current)
        if isinstance(error, Unauthorized) or error.details.get("reason") in MOVED:
            if again:
                self._rest(session_id)
            elif current is not None:
                current.put_out()
            return safe
        return False

    async def close(self) -> None:
        self._held.clear()
        while self._workers:
            await self._workers.popitem()[1].connection.close()

    # what is known

    def _hold(self, session_id: str, held: _Held) -> None:
        # Taken out and put in again: so the first is the one whose access is oldest.
        self._held.pop(session_id, None)
        if len(self._held) >= MAX_SESSIONS:
            self._held.pop(next(iter(self._held)), None)
        self._held[session_id] = held

    def _rest(self, session_id: str) -> None:
        """Through the door for a while; then the coordinator is asked again."""
        self._hold(session_id, _Held(None, time.monotonic() + LEFT_ALONE_S, math.inf))

    def _left_alone(self, held: _Held) -> bool:
        worker = None if held.access is None else self._workers.get(_at(held.access))
        return worker is not None and time.monotonic() < worker.left_alone_until

    async def _is_elsewhere(
        self, session_id: str, used: Connection, held: _Held | None, current: _Held | None
    ) -> bool:
        """A worker knows no such session, or none of its execs or shells by that name. Its word is good if
        the coordinator still says that the session is there, or that there is none.
        """
        if current is None:
            return held is None or held.access is None or _at(held.access) != _at(used)
        current.put_out()
        held = await self._renewed(session_id, current)
        return held is not None and (held is current or held.access is None or _at(held.access) != _at(used))

    async def _renewed(self, session_id: str, stale: _Held) -> _Held | None:
        """What is held after the coordinator was asked, by this call or by another one meanwhile; ``stale``
        itself if it could not be asked.
        """
        key = (asyncio.get_running_loop(), session_id)
        lock = self._asking.setdefault(key, asyncio.Lock())
        async with lock:
            held = self._held.get(session_id)
            if held is not stale or time.monotonic() < stale.renew_at:
                return held
            try:
                async with asyncio.timeout(RENEWED_WITHIN_S):
                    access = await self._ask(session_id)
            except NotFound:
                self.forget(session_id)
            except (SandlotError, TimeoutError):
                stale.renew_at = time.monotonic() + PAUSE_AFTER_FAILED_RENEWAL_S
            else:
                if access is None:
                    self._rest(session_id)
            return self._held.get(session_id)

    async def _new_worker(self, access: Access) -> _Worker | None:
        """None where the token must not go: what was secret on the way to the coordinator stays secret on the
        way to a worker, so from https only to https. And a worker on loopback is on the coordinator's
        machine, which is not ours unless the coordinator is on loopback too.
        """
        try:
            connection = Connection(
                access.url,
                connect_timeout_s=CONNECT_TIMEOUT_S,
                trust=self.door.trust,
                worker=access.worker,
            )
        except InvalidRequest:
            return None
        if connection.loopback and not self.door.loopback:
            return None
        if self.door.secure and not (connection.secure or connection.loopback):
            return None
        if len(self._workers) >= MAX_WORKERS:
            oldest = self._workers.pop(next(iter(self._workers)))
            await oldest.connection.close()
        return self._workers.setdefault(_at(access), _Worker(connection))


def _at(worker: Access | Connection) -> tuple[str, str]:
    return worker.url, worker.worker
