"""Gets or creates sessions. A thread, an idempotency key or a lost session's id gets one session,
however many requests ask for it at the same time.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Mapping
from typing import Any

import msgspec

from sandlot.domain.callers.principal import Principal
from sandlot.domain.errors import IdempotencyMismatch, SandlotError, SessionEnded, Unavailable
from sandlot.domain.service import Opened
from sandlot.domain.session import KEPT_VARIABLES, Assignment, CreateSession, SessionState
from sandlot.domain.session_states import ended_error, expiry_reason, no_session_error
from sandlot.domain.thread_options import check_thread_options
from sandlot.worker.refusals import ended_meanwhile
from sandlot.worker.registrar import Registrar
from sandlot.worker.sessions.live_session import LiveSession
from sandlot.worker.sessions.opening import Opening

NO_ASSIGNMENT = Assignment()
# A tenant, what kind of name it is, and the name.
SharedName = tuple[str, str, str]


class Creates:
    def __init__(self, opening: Opening, registrar: Registrar, join_timeout_s: float) -> None:
        """``join_timeout_s``: how long a create waits for another create of the same session."""
        self._join_timeout_s = join_timeout_s
        self._opening = opening
        self._sessions = opening.sessions
        self._registrar = registrar
        self._open_tasks: set[asyncio.Task[LiveSession]] = set()
        self._in_flight: dict[SharedName, asyncio.Task[LiveSession]] = {}

    async def get_or_create(
        self,
        principal: Principal,
        request: CreateSession,
        assignment: Assignment,
        refusal: Unavailable | None,
    ) -> Opened:
        """Return the tenant's existing session for this request, or open a new one.

        ``refusal``: the error for new sessions if the worker takes none. Existing ones are still
        found.
        """
        tenant = principal.tenant
        if assignment.lost is not None and assignment.lost.tenant != tenant:
            raise no_session_error(assignment.lost.id)
        digest = _digest(request)
        names = _shared_names(tenant, request, assignment)
        clock = asyncio.get_running_loop().time
        deadline = clock() + self._join_timeout_s
        while True:
            live_session = await self._existing(tenant, request, digest, assignment)
            if live_session is not None:
                await self._consume_reservation(live_session, assignment)
                return Opened(live_session.client_view, created=False)
            creating = next((self._in_flight[name] for name in names if name in self._in_flight), None)
            if creating is None:
                break
            # Another request is creating the same session. Once it is done, this loop finds the
            # session. If it fails, this request tries for itself: it may differ, or the cause may
            # have passed.
            await asyncio.wait({creating}, timeout=max(0.0, deadline - clock()))
            if clock() >= deadline:
                raise Unavailable(
                    "Another request is still creating a sandbox for the same thread or idempotency "
                    "key. Retry.",
                    retry_after_s=1.0,
                    details={"reason": "queue"},
                )
        if refusal is not None:
            raise refusal
        if not assignment.opens:
            raise ended_meanwhile()
        live_session = await self._open(principal, request, digest, names, assignment)
        return Opened(live_session.session, created=assignment.lost is None)

    @property
    def under_way(self) -> bool:
        return bool(self._open_tasks)

    async def finish(self) -> None:
        """Wait until all sessions that are being opened are open or have failed."""
        if self._open_tasks:
            await asyncio.wait(set(self._open_tasks))

    async def _open(
        self,
        principal: Principal,
        request: CreateSession,
        digest: str,
        names: list[SharedName],
        assignment: Assignment,
    ) -> LiveSession:
        # A separate task: the first caller may leave while others wait for the same session.
        task = asyncio.create_task(self._opening.open(principal, request, digest, assignment))
        self._open_tasks.add(task)
        self._in_flight.update(dict.fromkeys(names, task))

        def finished(_: asyncio.Task[LiveSession]) -> None:
            self._open_tasks.discard(task)
            for name in names:
                del self._in_flight[name]
            if not task.cancelled():
                task.exception()  # retrieved, or asyncio warns if all callers have left

        task.add_done_callback(finished)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if not names:
                task.cancel()  # without a thread or key no other request could find it
            raise

    async def _existing(
        self, tenant: str, request: CreateSession, digest: str, assignment: Assignment
    ) -> LiveSession | None:
        """The session that this request already has, or None. It checks again after its last wait,
        so the result is true at the moment when it returns.
        """
        if assignment.lost is not None:
            live_session = self._sessions.table.find(tenant, assignment.lost.id)
            if live_session is not None:  # the fleet sent it to the worker that has it
                check_thread_options(request, live_session.session, _known_env(live_session))
                if live_session.session.state is SessionState.LOST:
                    await self._recreate(live_session)
                live_session.touch()
                return live_session
        if request.idempotency_key is not None:
            record = self._sessions.table.by_key(tenant, request.idempotency_key)
            if record is not None:
                if record.request_digest != digest:
                    raise _mismatch(request.idempotency_key)
                if record.session.state is SessionState.ENDED:
                    raise ended_error(record.session)
                return self._sessions.table.get(tenant, record.session.id)
        if request.thread is None:
            return None
        while (live_session := self._sessions.table.by_thread(tenant, request.thread)) is not None:
            if live_session.expiry_check is not None:
                await asyncio.shield(live_session.expiry_check)
                continue
            if expiry_reason(live_session.session, time.time()) is not None:
                await self._sessions.expire(live_session)
                if self._sessions.table.by_thread(tenant, request.thread) is not live_session:
                    continue
            check_thread_options(request, live_session.session, _known_env(live_session))
            if live_session.session.state is SessionState.HIBERNATED:
                try:
                    await self._opening.wake(live_session)
                except SessionEnded:
                    continue  # deleted meanwhile
            if live_session.session.state is SessionState.LOST and request.recreate_lost:
                try:
                    await self._recreate(live_session)
                except SessionEnded:
                    continue  # deleted meanwhile
            live_session.touch()
            return live_session
        return None

    async def _recreate(self, live_session: LiveSession) -> None:
        """Recreate a lost session once, however many requests ask. If another request has just done
        it, this one succeeds too.
        """
        generation = live_session.session.generation
        try:
            await self._opening.recreate(live_session)
        except SandlotError:
            if live_session.session.generation == generation:
                raise

    async def _consume_reservation(self, live_session: LiveSession, assignment: Assignment) -> None:
        """Return a reservation that the fleet made for a session that already exists: recording the
        session again with the reservation frees it.
        """
        if assignment.reservation is None or assignment.reservation == live_session.reservation:
            return
        await self._registrar.opened(
            live_session.session, live_session.record.idempotency_key, assignment.reservation
        )
        live_session.reservation = assignment.reservation


def _known_env(live_session: LiveSession) -> Mapping[str, str] | None:
    """The session's variables.

    None if they were lost with a worker, so that they cannot be compared.
    """
    loss = live_session.session.loss
    lost = loss is not None and KEPT_VARIABLES not in loss.kept and not live_session.record.env
    return None if lost else live_session.record.env


def _shared_names(tenant: str, request: CreateSession, assignment: Assignment) -> list[SharedName]:
    """The names under which other requests of the tenant may ask for the same session.

    Creates that share one are merged.
    """
    names = {
        "thread": request.thread,
        "key": request.idempotency_key,
        "session": None if assignment.lost is None else assignment.lost.id,
    }
    return [(tenant, kind, name) for kind, name in names.items() if name is not None]


def _digest(request: CreateSession) -> str:
    """A digest of all options of a request except its idempotency key; empty without a key."""
    if request.idempotency_key is None:
        return ""
    asked: dict[str, Any] = {
        name: repr(getattr(request, name))
        for name in ("environment", "thread", "limits", "idle_timeout_s", "lifetime_s", "recreate_lost")
    }
    if request.record:  # only then, so that keys from before this option still match
        asked["record"] = True
    if request.on_idle is not None:
        asked["on_idle"] = request.on_idle
    if request.snapshot is not None:
        asked["snapshot"] = request.snapshot
    if request.volumes:
        asked["volumes"] = sorted((use.volume, use.mode) for use in request.volumes)
    if request.artifacts:
        asked["artifacts"] = request.artifacts
    if request.network is not None:
        asked["network"] = request.network.to_document()
    asked["env"] = sorted(request.env.items())
    asked["metadata"] = sorted(request.metadata.items())
    return hashlib.sha256(msgspec.json.encode(asked)).hexdigest()


def _mismatch(key: str) -> IdempotencyMismatch:
    return IdempotencyMismatch(
        f"Idempotency key {key[:64]!r} was already used for a different request. Use a new key."
    )
