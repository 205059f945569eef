"""A ``SandboxService`` that forwards each call to the session's worker.

A coordinator holds no state of its own: any other coordinator of the fleet can replace it.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Final

import structlog

from sandlot.domain.environment import with_provider
from sandlot.domain.errors import (
    InvalidRequest,
    LinkInterrupted,
    NotFound,
    SandboxLost,
    SandlotError,
    SessionEnded,
    Unavailable,
)
from sandlot.domain.execution import ExecRequest
from sandlot.domain.history.query import EventPage, EventQuery
from sandlot.domain.service import (
    Catalogue,
    Opened,
    ServiceHealth,
    SessionPage,
    ThreadRun,
)
from sandlot.domain.session import (
    ENDED_MEANWHILE,
    Assignment,
    CreateSession,
    EndReason,
    Session,
    SessionChange,
)
from sandlot.domain.session_states import end, mark_worker_lost, predecessor
from sandlot.domain.thread_options import check_thread_options
from sandlot.fleet.coordinator.calls.artifacts import ArtifactCalls
from sandlot.fleet.coordinator.calls.contexts import ContextCalls
from sandlot.fleet.coordinator.calls.forwarded import ENGINE_CALL_S
from sandlot.fleet.coordinator.calls.volumes import VolumeCalls
from sandlot.fleet.coordinator.calls.workspaces import WorkspaceCalls
from sandlot.fleet.coordinator.placement_requests import placement_request, takeover_request
from sandlot.fleet.coordinator.session_locations import lost_with_worker
from sandlot.fleet.coordinator.worker_links import as_client_error, watched
from sandlot.fleet.directory.contract import (
    FoundSession,
    LostPlace,
    Place,
    PlacementRequest,
    WorkerState,
)

log = structlog.get_logger("sandlot.coordinator")

# Workers to try for one create, one after the other, if they are unreachable or turn out full.
MAX_WORKERS_TRIED: Final = 4
# How often, and with how many seconds between, a create is placed again whose session has just ended.
PLACED_AGAIN: Final = 20
PLACED_AGAIN_EVERY_S: Final = 0.1
# Seconds to give a reservation back. If this fails, the reservation expires by itself.
GIVE_BACK_WITHIN_S: Final = 2.0


class CoordinatorService(WorkspaceCalls, ArtifactCalls, VolumeCalls, ContextCalls):
    """Implements ``SandboxService`` for one caller. ``CoordinatorHost.acting_for`` makes it."""

    # --- sessions -----------------------------------------------------------------------------

    async def create_session(self, request: CreateSession) -> Opened:
        request = with_provider(request, {each.name: each.provider for each in self._catalogue.environments})
        # Without a key from the client, use a random one. Whatever fails on the way to the worker,
        # a repeated request then makes no second session.
        keyed = replace(request, idempotency_key=request.idempotency_key or secrets.token_hex(16))
        allowances = self._parts.allowances(self._principal)
        original = placement_request(self._catalogue, self._principal, keyed, allowances)
        if request.snapshot is not None:
            original = replace(original, only=await self._worker_to_begin_on(request.snapshot))
        if request.volumes:
            only = await self._worker_with_volumes(request.volumes, original.only)
            original = replace(original, only=only)
        wanted = original
        lost: Session | None = None
        last_error: SandlotError | None = None
        ended_meanwhile = 0
        while True:
            asked_at = self._locations.now()
            try:
                place = await self._directory.place(wanted)
            except NotFound:
                if wanted.takes_over is None:
                    raise
                # The lost session was deleted meanwhile, so its thread gets a new session.
                wanted, lost = replace(original, avoid=wanted.avoid), None
                continue
            except Unavailable:
                # The failure of the last worker says more than "no other worker has room".
                if last_error is not None:
                    raise last_error from None
                raise
            if isinstance(place, LostPlace):
                lost = lost_with_worker(FoundSession(place.session, place.worker))
                check_thread_options(request, lost, env=None)
                if not request.recreate_lost:
                    return Opened(lost, created=False)
                wanted = takeover_request(self._catalogue, wanted, lost)
                continue
            try:
                return await self._create_at(place, keyed, lost, asked_at)
            except SandlotError as error:
                if request.snapshot is not None and original.only is None and isinstance(error, NotFound):
                    raise await self._not_found(request.snapshot, error) from error
                if error.details.get("reason") == ENDED_MEANWHILE and ended_meanwhile < PLACED_AGAIN:
                    # The directory hears of the end any moment.
                    ended_meanwhile += 1
                    await asyncio.sleep(PLACED_AGAIN_EVERY_S)
                    continue
                if not _can_try_elsewhere(place, error) or len(wanted.avoid) + 1 >= MAX_WORKERS_TRIED:
                    raise
                log.warning("worker failed; trying another", worker=place.worker.id, error=error.message)
                wanted, last_error = replace(wanted, avoid=(*wanted.avoid, place.worker.id)), error

    async def _create_at(
        self, place: Place, request: CreateSession, lost: Session | None, asked_at: float
    ) -> Opened:
        """Create a session on the worker of ``place``.

        ``lost`` is the session to take over, with its loss report. ``asked_at`` is when the
        directory was asked for the place. It is passed in because a create may take long.
        """
        assignment = Assignment(
            reservation=place.reservation,
            predecessor=None if place.previous is None else predecessor(place.previous),
            # When this create joins another client's take-over, there is no loss report yet.
            lost=None
            if place.lost is None
            else lost or mark_worker_lost(place.lost, place.lost.last_active_at),
            opens=not place.known or place.reservation is not None,
        )
        self._parts.calls += 1
        try:
            link = await self._links.to(place.worker, self._principal)
            async with watched(link, ENGINE_CALL_S):
                opened = await link.create_assigned(request, assignment)
        except SandlotError as error:
            if place.reservation is not None and not error.may_have_executed:
                await self._give_back(place.reservation)
            raise as_client_error(place.worker.id, error) from error
        finally:
            self._parts.calls -= 1
        self._locations.remember(opened.session, place.worker, asked_at)
        return opened

    async def _give_back(self, reservation: str) -> None:
        with contextlib.suppress(SandlotError, TimeoutError):
            async with asyncio.timeout(GIVE_BACK_WITHIN_S):
                await self._directory.give_back(reservation)

    async def get_session(self, session_id: str) -> Session:
        try:
            async with self._worker_for(session_id, within_s=ENGINE_CALL_S) as worker:
                return await worker.get_session(session_id)
        except SandboxLost:
            found = await self._locations.find(self._tenant, session_id)
            # Another worker may have taken the session over since.
            return lost_with_worker(found) if found.worker.state is WorkerState.GONE else found.session
        except (Unavailable, LinkInterrupted):
            # Perhaps only this coordinator cannot reach the worker. A client that asks for access
            # may still reach it.
            found = await self._locations.find(self._tenant, session_id)
            if found.worker.state is not WorkerState.ALIVE:
                raise
            self._locations.remember(found.session, found.worker)
            return found.session

    async def list_sessions(
        self, *, thread: str | None = None, after: str | None = None, limit: int = 100
    ) -> SessionPage:
        page = await self._directory.page(self._tenant, thread=thread, after=after, limit=limit)
        for found in page.found:
            if found.worker.state is WorkerState.GONE:
                self._locations.forget(found.session.id)
            else:
                self._locations.remember(found.session, found.worker)
        return SessionPage(
            tuple(
                lost_with_worker(found) if found.worker.state is WorkerState.GONE else found.session
                for found in page.found
            ),
            page.next,
        )

    async def update_session(self, session_id: str, change: SessionChange) -> Session:
        async with self._worker_for(session_id, within_s=ENGINE_CALL_S) as worker:
            return await worker.update_session(session_id, change)

    async def recreate_session(self, session_id: str) -> Session:
        try:
            async with self._worker_for(session_id, within_s=ENGINE_CALL_S) as worker:
                return await worker.recreate_session(session_id)
        except SandboxLost:
            return await self._take_over(session_id)

    async def _take_over(self, session_id: str) -> Session:
        """Give the session a new sandbox on another worker, because its own worker is gone."""
        lost = lost_with_worker(await self._locations.find(self._tenant, session_id))
        asked_at = self._locations.now()
        place = await self._directory.place(
            takeover_request(
                self._catalogue, PlacementRequest(self._tenant, lost.environment, thread=lost.thread), lost
            )
        )
        assert isinstance(place, Place), "a takeover gets a place, not a report"
        if place.lost is None:  # the session's worker is back
            async with self._worker_for(session_id, within_s=ENGINE_CALL_S) as worker:
                return await worker.recreate_session(session_id)
        request = CreateSession(
            environment=lost.environment,
            thread=lost.thread,
            idempotency_key=secrets.token_hex(16),
            recreate_lost=True,
        )
        return (await self._create_at(place, request, lost, asked_at)).session

    async def delete_session(self, session_id: str) -> None:
        try:
            async with self._worker_for(session_id, within_s=ENGINE_CALL_S) as worker:
                await worker.delete_session(session_id)
        except SandboxLost:
            # If the worker comes back, it removes what it still has of the session.
            lost = (await self._locations.find(self._tenant, session_id)).session
            await self._directory.bury(end(lost, EndReason.DELETED, time.time()))
        except SessionEnded:
            pass
        self._locations.forget(session_id)

    # --- threads and history ------------------------------------------------------------------

    async def execute_in_thread(
        self, create: CreateSession, request: ExecRequest, stdin: bytes | None = None
    ) -> ThreadRun:
        if create.thread is None:
            raise InvalidRequest("Missing thread.")
        opened = await self.create_session(create)
        return ThreadRun(opened, await self.execute(opened.session.id, request, stdin))

    async def list_events(self, query: EventQuery) -> EventPage:
        return await self._parts.history.page(self._principal, query)

    def read_recording(self, session_id: str) -> AsyncIterator[bytes]:
        return self._parts.history.recording(self._principal, session_id)

    # --- the service itself -------------------------------------------------------------------

    async def catalogue(self) -> Catalogue:
        return await self._parts.catalogue_for(self._principal)

    async def health(self) -> ServiceHealth:
        return await self._parts.health_for(self._principal)

    async def close(self) -> None:
        """Does nothing: the coordinator belongs to all its callers, and its host closes it."""


def _can_try_elsewhere(place: Place, error: SandlotError) -> bool:
    """Whether another worker may serve a create that failed on this one.

    A session that exists there must not move, and one that the worker may have made must not be
    made twice. Otherwise temporary problems of this worker, such as a full disk or a stopped
    engine, may not affect another worker.
    """
    temporary = isinstance(error, Unavailable) or error.retryable
    return temporary and not place.known and not error.may_have_executed
