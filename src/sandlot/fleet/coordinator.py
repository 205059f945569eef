"""``SandboxService`` by finding the right worker. It knows nothing that another coordinator could not."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Final

import structlog

from sandlot.domain.computer import ExecSummary, Execution, Files, ShellSummary
from sandlot.domain.errors import (
    InvalidRequest,
    LinkInterrupted,
    NotFound,
    SandboxLost,
    SandlotError,
    SessionEnded,
    Unavailable,
)
from sandlot.domain.execution import ExecRequest, ExecResult
from sandlot.domain.files_within import FilesWithin
from sandlot.domain.service import (
    Access,
    Catalogue,
    ExecStatus,
    Opened,
    ServiceHealth,
    SessionPage,
    ThreadRun,
)
from sandlot.domain.session import (
    DEFAULT_TENANT,
    Assignment,
    CreateSession,
    EndReason,
    Session,
    SessionChange,
    SessionState,
    end,
    predecessor,
    without_worker,
)
from sandlot.domain.thread_options import check_same
from sandlot.fleet.access import AccessTokens
from sandlot.fleet.coordinator_options import CoordinatorOptions
from sandlot.fleet.directory import Directory, Found, LostPlace, Place, Want, WorkerState
from sandlot.fleet.fleet_health import FleetHealth, fleet_body, placed_body
from sandlot.fleet.links import Watch, WorkerLink, WorkerLinks, of_worker, unwatched, watched
from sandlot.fleet.wants import taking_over, want_of
from sandlot.fleet.whereabouts import Whereabouts, lost_with_worker
from sandlot.wire.fleet_bodies import FleetBody, PlacedSessionsBody

log = structlog.get_logger("sandlot.coordinator")

# Workers that one create is sent to, one after the other, when they cannot be reached or are full after all.
PLACES: Final = 4
# Seconds for a place to be given back; otherwise it comes back by itself.
GIVE_BACK_WITHIN_S: Final = 2.0
# Seconds that a stopping coordinator gives to calls under way. They can be asked for again elsewhere.
STOP_WITHIN_S: Final = 10.0
# Seconds for what an engine has to do, or a queue: a delete, a change, a sandbox made anew.
ENGINE_CALL_S: Final = 120.0


class CoordinatorService:
    """Implements ``SandboxService``. The directory is the caller's to close."""

    def __init__(
        self,
        directory: Directory,
        tokens: AccessTokens,
        catalogue: Catalogue,
        options: CoordinatorOptions | None = None,
    ) -> None:
        self._directory = directory
        self._tokens = tokens
        self._catalogue = catalogue
        self._options = options or CoordinatorOptions()
        self._tenant = DEFAULT_TENANT
        self._links = WorkerLinks(
            tokens.for_member, lambda session_id: self._whereabouts.of(self._tenant, session_id)
        )
        self._whereabouts = Whereabouts(directory, self._links)
        self._calls = 0
        self._health = FleetHealth(
            directory, self._options.coordinator_id, self._options.expected, tokens.signed_with
        )

    def access(self, session: Session) -> Access | None:
        """The way straight to the worker of a session that was just answered for."""
        known = self._whereabouts.known(session.id) if self._options.direct else None
        if known is None or session.state not in (SessionState.ACTIVE, SessionState.UNRESPONSIVE):
            return None
        worker, older_s = known
        if worker.state is not WorkerState.ALIVE:
            return None
        return self._tokens.for_session(session, worker.url, worker.id, older_s=older_s)

    # --- sessions -----------------------------------------------------------------------------

    async def create_session(self, request: CreateSession) -> Opened:
        # Its own, if the client has none: whatever breaks on the way, asking again makes no second session.
        keyed = replace(request, idempotency_key=request.idempotency_key or secrets.token_hex(16))
        want = asked = want_of(self._catalogue, self._tenant, keyed, self._options.max_sessions)
        lost: Session | None = None
        passed_over: SandlotError | None = None
        while True:
            asked_at = self._whereabouts.now()
            try:
                place = await self._directory.place(want)
            except NotFound:
                if want.takes_over is None:
                    raise
                # Deleted meanwhile: its thread begins anew.
                want, lost = replace(asked, avoid=want.avoid), None
                continue
            except Unavailable:
                # Why nobody else can take it says less than why that one did not.
                if passed_over is not None:
                    raise passed_over from None
                raise
            if isinstance(place, LostPlace):
                lost = lost_with_worker(Found(place.session, place.worker))
                check_same(request, lost, env=None)
                if not request.recreate_lost:
                    return Opened(lost, created=False)
                want = taking_over(self._catalogue, want, lost)
                continue
            try:
                return await self._create_at(place, keyed, lost, asked_at)
            except SandlotError as error:
                if not _may_go_elsewhere(place, error) or len(want.avoid) + 1 >= PLACES:
                    raise
                log.warning("a worker is passed over", worker=place.worker.id, error=error.message)
                want, passed_over = replace(want, avoid=(*want.avoid, place.worker.id)), error

    async def _create_at(
        self, place: Place, request: CreateSession, lost: Session | None, asked_at: float
    ) -> Opened:
        """``lost``: the session that is to be taken over, with the report of its loss. ``asked_at``: when the
        directory was asked for the place; a create may take long.
        """
        assignment = Assignment(
            reservation=place.reservation,
            predecessor=None if place.before is None else predecessor(place.before),
            # Where another's take-over is followed, nobody has written the report yet.
            lost=None
            if place.lost is None
            else lost or without_worker(place.lost, place.lost.last_active_at),
        )
        self._calls += 1
        try:
            link = await self._links.to(place.worker)
            async with watched(link, ENGINE_CALL_S):
                opened = await link.create_assigned(request, assignment)
        except SandlotError as error:
            if place.reservation is not None and not error.may_have_executed:
                await self._give_back(place.reservation)
            raise of_worker(place.worker.id, error) from error
        finally:
            self._calls -= 1
        self._whereabouts.remember(opened.session, place.worker, asked_at)
        return opened

    async def _give_back(self, reservation: str) -> None:
        with contextlib.suppress(SandlotError, TimeoutError):
            async with asyncio.timeout(GIVE_BACK_WITHIN_S):
                await self._directory.give_back(reservation)

    async def get_session(self, session_id: str) -> Session:
        try:
            async with self._use(session_id, within_s=ENGINE_CALL_S) as worker:
                return await worker.get_session(session_id)
        except SandboxLost:
            found = await self._whereabouts.find(self._tenant, session_id)
            # It may have been taken over since.
            return lost_with_worker(found) if found.worker.state is WorkerState.GONE else found.session
        except (Unavailable, LinkInterrupted):
            # It may be this coordinator alone that cannot reach the worker; whoever asks for access may.
            found = await self._whereabouts.find(self._tenant, session_id)
            if found.worker.state is not WorkerState.ALIVE:
                raise
            self._whereabouts.remember(found.session, found.worker)
            return found.session

    async def list_sessions(
        self, *, thread: str | None = None, after: str | None = None, limit: int = 100
    ) -> SessionPage:
        page = await self._directory.page(self._tenant, thread=thread, after=after, limit=limit)
        for found in page.found:
            if found.worker.state is WorkerState.GONE:
                self._whereabouts.forget(found.session.id)
            else:
                self._whereabouts.remember(found.session, found.worker)
        return SessionPage(
            tuple(
                lost_with_worker(found) if found.worker.state is WorkerState.GONE else found.session
                for found in page.found
            ),
            page.next,
        )

    async def update_session(self, session_id: str, change: SessionChange) -> Session:
        async with self._use(session_id, within_s=ENGINE_CALL_S) as worker:
            return await worker.update_session(session_id, change)

    async def recreate_session(self, session_id: str) -> Session:
        try:
            async with self._use(session_id, within_s=ENGINE_CALL_S) as worker:
                return await worker.recreate_session(session_id)
        except SandboxLost:
            return await self._take_over(session_id)

    async def _take_over(self, session_id: str) -> Session:
        """On another worker: the one that it had is gone."""
        lost = lost_with_worker(await self._whereabouts.find(self._tenant, session_id))
        asked_at = self._whereabouts.now()
        place = await self._directory.place(
            taking_over(self._catalogue, Want(self._tenant, lost.environment, thread=lost.thread), lost)
        )
        assert isinstance(place, Place), "whoever takes over is given a place, not a report"
        if place.lost is None:  # its worker is back
            async with self._use(session_id, within_s=ENGINE_CALL_S) as worker:
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
            async with self._use(session_id, within_s=ENGINE_CALL_S) as worker:
                await worker.delete_session(session_id)
        except SandboxLost:
            # Should its worker come back, it ends what it has of it.
            lost = (await self._whereabouts.find(self._tenant, session_id)).session
            await self._directory.bury(end(lost, EndReason.DELETED, time.time()))
        except SessionEnded:
            pass
        self._whereabouts.forget(session_id)

    # --- execs --------------------------------------------------------------------------------

    async def execute(self, session_id: str, request: ExecRequest, stdin: bytes | None = None) -> ExecResult:
        async with self._use(session_id, within_s=self._options.ends_within(request)) as worker:
            return await worker.execute(session_id, request, stdin)

    async def execute_in_thread(
        self, create: CreateSession, request: ExecRequest, stdin: bytes | None = None
    ) -> ThreadRun:
        if create.thread is None:
            raise InvalidRequest("say which thread")
        opened = await self.create_session(create)
        return ThreadRun(opened, await self.execute(opened.session.id, request, stdin))

    async def start_exec(self, session_id: str, request: ExecRequest, *, offset: int = 0) -> Execution:
        async with self._use(session_id, within_s=self._options.answers_within_s) as worker:
            return await worker.start_exec(session_id, request, offset=offset)

    async def attach_exec(self, session_id: str, exec_id: str, *, offset: int = 0) -> Execution:
        async with self._use(session_id, within_s=self._options.answers_within_s) as worker:
            return await worker.attach_exec(session_id, exec_id, offset=offset)

    async def get_exec(self, session_id: str, exec_id: str, *, wait_s: float = 0) -> ExecStatus:
        async with self._use(session_id, within_s=wait_s + self._options.answers_within_s) as worker:
            return await worker.get_exec(session_id, exec_id, wait_s=wait_s)

    async def list_execs(self, session_id: str) -> Sequence[ExecSummary]:
        async with self._use(session_id, within_s=self._options.answers_within_s) as worker:
            return await worker.list_execs(session_id)

    async def signal_exec(self, session_id: str, exec_id: str, signal: int) -> int:
        async with self._use(session_id, within_s=self._options.answers_within_s) as worker:
            return await worker.signal_exec(session_id, exec_id, signal)

    async def kill_exec(self, session_id: str, exec_id: str) -> int:
        async with self._use(session_id, within_s=self._options.answers_within_s) as worker:
            return await worker.kill_exec(session_id, exec_id)

    async def resize_exec(self, session_id: str, exec_id: str, *, rows: int, cols: int) -> None:
        async with self._use(session_id, within_s=self._options.answers_within_s) as worker:
            await worker.resize_exec(session_id, exec_id, rows=rows, cols=cols)

    # --- shells and files ---------------------------------------------------------------------

    async def list_shells(self, session_id: str) -> Sequence[ShellSummary]:
        async with self._use(session_id, within_s=self._options.answers_within_s) as worker:
            return await worker.list_shells(session_id)

    async def close_shell(self, session_id: str, name: str) -> None:
        async with self._use(session_id, within_s=self._options.answers_within_s) as worker:
            await worker.close_shell(session_id, name)

    def files(self, session_id: str) -> Files:
        @asynccontextmanager
        async def use(watch: Watch = watched) -> AsyncIterator[Files]:
            async with self._use(session_id, watch=watch) as worker:
                yield worker.files(session_id)

        # The client bounds the wait for each piece, and a watch would cancel the task that began.
        return FilesWithin(use, stream=partial(use, unwatched))

    # --- the service itself -------------------------------------------------------------------

    async def catalogue(self) -> Catalogue:
        return self._catalogue

    async def health(self) -> ServiceHealth:
        return replace(await self._health.now(), calls_under_way=self._calls)

    async def fleet(self) -> FleetBody:
        return fleet_body(
            await self._directory.status(), await self._directory.workers(), self._tokens.signed_with
        )

    async def placed_sessions(self, *, after: str | None, limit: int) -> PlacedSessionsBody:
        return placed_body(await self._directory.page(self._tenant, after=after, limit=limit))

    async def set_draining(self, worker_id: str, draining: bool) -> None:
        """While it drains, that worker takes no new sessions; those that it has go on."""
        status = next((known for known in await self._directory.workers() if known.at.id == worker_id), None)
        if status is None:
            raise InvalidRequest(f"there is no worker {worker_id!r:.80}; `sandlot fleet workers` shows them")
        try:
            await (await self._links.to(status.at)).set_draining(draining)
        except SandlotError as error:
            raise of_worker(worker_id, error) from error

    async def stop(self) -> None:
        """No new sessions here, and a while for calls under way; the other coordinators go on."""
        self._health.stopping = True
        deadline = time.monotonic() + STOP_WITHIN_S
        while self._calls and time.monotonic() < deadline:  # noqa: ASYNC110  # calls are many, stops rare
            await asyncio.sleep(0.05)

    async def close(self) -> None:
        await self._links.close()

    @asynccontextmanager
    async def _use(
        self, session_id: str, *, within_s: float | None = None, watch: Watch = watched
    ) -> AsyncIterator[WorkerLink]:
        """The worker of a session, for one call; what goes wrong is told as what it means to the session."""
        at = await self._whereabouts.of(self._tenant, session_id)
        self._calls += 1
        try:
            link = await self._links.to(at)
            async with watch(link, within_s):
                yield link
        except SandlotError as error:
            explained = await self._whereabouts.explained(self._tenant, session_id, at, error)
            if explained is error:
                raise
            raise explained from error
        finally:
            self._calls -= 1


def _may_go_elsewhere(place: Place, error: SandlotError) -> bool:
    """What is known to be there is not moved, and what may have been made there is not made again. Of the
    rest, what passes with time here may not be so there: a full disk, an engine that is away.
    """
    passes = isinstance(error, Unavailable) or error.retryable
    return passes and not place.known and not error.may_have_executed
