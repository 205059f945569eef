"""Get or create: one session for a thread, a key or a lost session's id, however many ask at once."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Mapping
from typing import Any

import msgspec

from sandlot.domain.errors import IdempotencyMismatch, SandlotError, SessionEnded, Unavailable
from sandlot.domain.service import Opened
from sandlot.domain.session import (
    KEPT_WITHOUT_A_WORKER,
    Assignment,
    CreateSession,
    SessionState,
    due,
    ended_error,
)
from sandlot.domain.thread_options import check_same
from sandlot.worker.live import Live
from sandlot.worker.opening import Opening
from sandlot.worker.registrar import Registrar

NO_ASSIGNMENT = Assignment()


class Creates:
    def __init__(self, opening: Opening, registrar: Registrar, tenant: str, patience_s: float) -> None:
        """``patience_s``: how long a create waits for another one's of the same."""
        self._patience_s = patience_s
        self._openings = opening
        self._sessions = opening.sessions
        self._registrar = registrar
        self._tenant = tenant
        self._opening: set[asyncio.Task[Live]] = set()
        self._flights: dict[tuple[str, str], asyncio.Task[Live]] = {}

    async def get_or_create(
        self, request: CreateSession, assignment: Assignment, refusal: Unavailable | None
    ) -> Opened:
        """``refusal``: why no new session is made, if so; one that is there is found all the same."""
        digest = _digest(request)
        names = _flight_names(request, assignment)
        clock = asyncio.get_running_loop().time
        patient_until = clock() + self._patience_s
        while True:
            live = await self._existing(request, digest, assignment)
            if live is not None:
                await self._consume(live, assignment)
                return Opened(live.shown, created=False)
            flight = next((self._flights[name] for name in names if name in self._flights), None)
            if flight is None:
                break
            # The same is being made for somebody else: when that is done, it is found. If it fails, that was
            # theirs: this request may differ, or be tried when what was wrong has passed.
            await asyncio.wait({flight}, timeout=max(0.0, patient_until - clock()))
            if clock() >= patient_until:
                raise Unavailable(
                    "another request is making a sandbox for the same thread or key, and is not done; retry",
                    retry_after_s=1.0,
                    details={"reason": "queue"},
                )
        if refusal is not None:
            raise refusal
        live = await self._open(request, digest, names, assignment)
        return Opened(live.session, created=assignment.lost is None)

    @property
    def under_way(self) -> bool:
        return bool(self._opening)

    async def finish(self) -> None:
        """Those that are being opened are open, or have failed, when it returns."""
        if self._opening:
            await asyncio.wait(set(self._opening))

    async def _open(
        self, request: CreateSession, digest: str, names: list[tuple[str, str]], assignment: Assignment
    ) -> Live:
        # A task of its own: whoever asked first may go away while others wait for the same.
        task = asyncio.create_task(self._openings.open(self._tenant, request, digest, assignment))
        self._opening.add(task)
        self._flights.update(dict.fromkeys(names, task))

        def landed(_: asyncio.Task[Live]) -> None:
            self._opening.discard(task)
            for name in names:
                del self._flights[name]
            if not task.cancelled():
                task.exception()  # heard, even if everybody who waited has left

        task.add_done_callback(landed)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if not names:
                task.cancel()  # nobody could ask for it again
            raise

    async def _existing(self, request: CreateSession, digest: str, assignment: Assignment) -> Live | None:
        """After its last wait it looks once more: what it returns is true at that moment."""
        if assignment.lost is not None:
            live = self._sessions.table.find(self._tenant, assignment.lost.id)
            if live is not None:  # it has come back to where it was
                check_same(request, live.session, _known_env(live))
                if live.session.state is SessionState.LOST:
                    await self._recreate(live)
                live.touch()
                return live
        if request.idempotency_key is not None:
            record = self._sessions.table.of_key(self._tenant, request.idempotency_key)
            if record is not None:
                if record.request_digest != digest:
                    raise _mismatch(request.idempotency_key)
                if record.session.state is SessionState.ENDED:
                    raise ended_error(record.session)
                return self._sessions.table.get(self._tenant, record.session.id)
        if request.thread is None:
            return None
        while (live := self._sessions.table.of_thread(self._tenant, request.thread)) is not None:
            if live.deciding is not None:
                await asyncio.shield(live.deciding)
                continue
            if due(live.session, time.time()) is not None:
                await self._sessions.expire(live)
                if self._sessions.table.of_thread(self._tenant, request.thread) is not live:
                    continue
            check_same(request, live.session, _known_env(live))
            if live.session.state is SessionState.LOST and request.recreate_lost:
                try:
                    await self._recreate(live)
                except SessionEnded:
                    continue  # deleted meanwhile
            live.touch()
            return live
        return None

    async def _recreate(self, live: Live) -> None:
        """Once, however many ask: those who find it done are content."""
        generation = live.session.generation
        try:
            await self._openings.recreate(live)
        except SandlotError:
            if live.session.generation == generation:
                raise

    async def _consume(self, live: Live, assignment: Assignment) -> None:
        """A place that was kept for a session which is here already goes back with its record."""
        if assignment.reservation is None or assignment.reservation == live.reservation:
            return
        await self._registrar.opened(live.session, live.record.idempotency_key, assignment.reservation)
        live.reservation = assignment.reservation


def _known_env(live: Live) -> Mapping[str, str] | None:
    """None where they were lost with a worker: nobody can say any more whether they were others."""
    loss = live.session.loss
    lost = loss is not None and loss.kept == KEPT_WITHOUT_A_WORKER and not live.record.env
    return None if lost else live.record.env


def _flight_names(request: CreateSession, assignment: Assignment) -> list[tuple[str, str]]:
    """Creates that share one of these are one create."""
    names = {
        "thread": request.thread,
        "key": request.idempotency_key,
        "session": None if assignment.lost is None else assignment.lost.id,
    }
    return [(kind, name) for kind, name in names.items() if name is not None]


def _digest(request: CreateSession) -> str:
    """Of everything that is asked for, but the key under which it is asked."""
    if request.idempotency_key is None:
        return ""
    asked: dict[str, Any] = {
        name: repr(getattr(request, name))
        for name in ("environment", "thread", "limits", "idle_timeout_s", "lifetime_s", "recreate_lost")
    }
    asked["env"] = sorted(request.env.items())
    asked["metadata"] = sorted(request.metadata.items())
    return hashlib.sha256(msgspec.json.encode(asked)).hexdigest()


def _mismatch(key: str) -> IdempotencyMismatch:
    return IdempotencyMismatch(
        f"the idempotency key {key[:64]!r} was used for another request; take a new key for a new request"
    )
