"""``SandboxService`` on the real sandboxes of one container engine."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from pathlib import Path

import structlog

from sandlot import __version__
from sandlot.domain.capacity.machine import Condition
from sandlot.domain.computer import ExecSummary, Execution, Files, ShellSummary
from sandlot.domain.environment import Recipe
from sandlot.domain.errors import InvalidRequest, SandboxLost, SandlotError, SessionEnded, Unavailable
from sandlot.domain.execution import ExecRequest, ExecResult
from sandlot.domain.paging import page_of
from sandlot.domain.service import Catalogue, ExecStatus, Opened, ServiceHealth, SessionPage, ThreadRun
from sandlot.domain.session import (
    DEFAULT_TENANT,
    Assignment,
    CreateSession,
    EndReason,
    Session,
    SessionChange,
)
from sandlot.providers.base import Provider, Sandbox
from sandlot.worker.assembly import assemble
from sandlot.worker.health_problems import broken_environments, disk_problems, silent_sandboxes
from sandlot.worker.options import WorkerOptions
from sandlot.worker.refusals import draining, no_room_on_disk, stopping
from sandlot.worker.registrar import Registrar, Unregistered
from sandlot.worker.sessions.creates import NO_ASSIGNMENT
from sandlot.worker.sessions.executions import SessionExecution, with_session
from sandlot.worker.sessions.files import SessionFiles
from sandlot.worker.sessions.live_session import LiveSession
from sandlot.worker.upkeep.startup import recover

log = structlog.get_logger("sandlot.worker")

# Seconds between two checks whether calls in progress have ended.
STOP_POLL_S = 0.05
# Seconds that a stop waits for commands whose callers wait for them or read their events.
EXECS_STOP_S = 2.0


class WorkerService:
    """A worker's implementation of ``SandboxService``. Call ``open`` first.

    ``close`` keeps the sessions' sandboxes: the next process adopts them.
    """

    def __init__(
        self,
        provider: Provider,
        *,
        database: Path,
        recipes: Mapping[str, Recipe],
        catalogue: Catalogue,
        options: WorkerOptions | None = None,
        registrar: Registrar | None = None,
    ) -> None:
        self._registrar: Registrar = registrar or Unregistered()
        self._provider = provider
        self._recipes = dict(recipes)
        self._catalogue = catalogue
        self._options = options or WorkerOptions()
        self._tenant = DEFAULT_TENANT
        parts = assemble(
            provider, database, self._recipes, self._options, self._registrar, tenant=self._tenant
        )
        self._store = parts.store
        self._sandboxes = parts.sandboxes
        self._pools = parts.pools
        self._one_off = parts.one_off
        self._sessions = parts.sessions
        self._opening = parts.opening
        self._moves = parts.moves
        self._creates = parts.creates
        self._disk = parts.disk
        self._capacity = parts.capacity
        self._reaper = parts.reaper
        self._closed = False
        self._stopping = False
        self._draining = False
        self._open = False

    # --- life ---------------------------------------------------------------------------------

    async def open(self) -> None:
        """Recover the sessions and sandboxes of an earlier process, and start to fill the pools."""
        await self._provider.open()
        await self._store.open()
        await self._disk.check()
        await recover(self._opening, self._sandboxes, self._store, self._options, time.time())
        self._reaper.start()
        self._open = True
        for pool in self._pools.values():
            pool.fill()

    async def stop(self) -> None:
        """Take no new sessions, and wait for calls that a stop would break: transfers and creates.

        Commands go on without this process, and their callers can ask the next one by exec id. So
        the wait for commands is short: most end soon.
        """
        self._stopping = True
        began = time.monotonic()
        while (passed_s := time.monotonic() - began) < self._options.drain_timeout_s:
            include_commands = passed_s < EXECS_STOP_S
            if not self._sessions.in_use(commands=include_commands) and not self._creates.under_way:
                break
            await asyncio.sleep(STOP_POLL_S)

    async def close(self) -> None:
        """Release everything except the sessions' sandboxes.

        Every step runs even if another one fails.
        """
        self._stopping = True
        if self._closed:
            return
        self._closed = True
        self._one_off.close()
        async with contextlib.AsyncExitStack() as steps:  # runs in reverse order
            steps.push_async_callback(self._store.close)
            steps.push_async_callback(self._provider.close)
            steps.push_async_callback(self._sessions.close)
            steps.push_async_callback(self._creates.finish)
            for pool in self._pools.values():
                steps.push_async_callback(pool.close)
            steps.push_async_callback(self._reaper.close)

    @property
    def session_ids(self) -> set[str]:
        return {live_session.session.id for live_session in self._sessions.table}

    async def stop_opening(self) -> None:
        """Take no new sessions, and wait until those that are being opened are open."""
        self._stopping = True
        await self._creates.finish()

    async def delete_sessions(self, session_ids: Collection[str]) -> None:
        """End these sessions.

        A worker that lives only as long as its program does this before it closes.
        """
        live_sessions = [
            live_session for live_session in self._sessions.table if live_session.session.id in session_ids
        ]
        ends = (self._sessions.end(live_session, EndReason.DELETED) for live_session in live_sessions)
        for failure in await asyncio.gather(*ends, return_exceptions=True):
            if isinstance(failure, BaseException):
                log.warning("cannot remove a session's sandbox", error=str(failure))

    # --- as a member of a fleet ---------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """Whether the worker has recovered its sessions and so knows them."""
        return self._open

    @property
    def session_count(self) -> int:
        """How many active and lost sessions there are."""
        return len(self._sessions.table)

    @property
    def draining(self) -> bool:
        """Whether the worker takes no new sessions. It still serves those that it has."""
        return self._draining or self._stopping

    def set_draining(self, draining: bool) -> None:
        self._draining = draining

    def generation_of(self, session_id: str) -> int | None:
        """The generation of an active or lost session; None if the session is not here."""
        live_session = self._sessions.table.find(self._tenant, session_id)
        return None if live_session is None else live_session.session.generation

    def room(self) -> Mapping[str, tuple[int, int]]:
        """Per environment: warm sandboxes that are ready, and sessions that still fit in total."""
        if not self._open or self._refusal is not None:
            return dict.fromkeys(self._pools, (0, 0))
        return self._capacity.room(self._pools, self._recipes)

    def condition(self) -> Condition:
        """The machine's use and its problems."""
        broken, silent = broken_environments(self._pools), silent_sandboxes(self._sessions.table)
        return Condition(self._capacity.use, (*self._disk_problems, *broken, *silent))

    @property
    def _disk_problems(self) -> tuple[str, ...]:
        return disk_problems(self._disk.problem, self._pools.values())

    def recorded_sessions(self) -> Sequence[tuple[Session, str | None]]:
        """All active and lost sessions and recently ended ones, with their idempotency keys."""
        return self._moves.recorded_sessions()

    async def adopt_lost_session(self, session: Session) -> Session | None:
        """Adopt a session, as lost, of an earlier worker with this one's id whose disk is gone."""
        return await self._moves.adopt_lost(session)

    async def give_up(self, session_ids: Collection[str]) -> None:
        """Drop sessions that now belong to another worker. Nothing of them stays here."""
        await self._moves.give_up(session_ids)

    async def warnings(self) -> Sequence[str]:
        """What an operator should know about the engine."""
        return await self._provider.warnings()

    # --- sessions -----------------------------------------------------------------------------

    async def create_session(self, request: CreateSession, assignment: Assignment | None = None) -> Opened:
        """``assignment``: what a fleet adds to the request."""
        if self._closed or not self._open:
            raise stopping()
        if self._disk.problem is not None:
            await self._disk.check()  # it may have room again
        return await self._creates.get_or_create(request, assignment or NO_ASSIGNMENT, self._refusal)

    @property
    def _refusal(self) -> Unavailable | None:
        """The error for new sessions if the worker takes none now, else None."""
        if self._stopping:
            return stopping()
        if self._draining:
            return draining()
        return None if self._disk.problem is None else no_room_on_disk(self._disk.problem)

    async def get_session(self, session_id: str) -> Session:
        return self._sessions.table.get(self._tenant, session_id).client_view

    async def list_sessions(
        self, *, thread: str | None = None, after: str | None = None, limit: int = 100
    ) -> SessionPage:
        sessions = (
            live_session.client_view
            for live_session in self._sessions.table
            if live_session.session.tenant == self._tenant and thread in (None, live_session.session.thread)
        )
        return page_of(sessions, after=after, limit=limit)

    async def update_session(self, session_id: str, change: SessionChange) -> Session:
        return await self._sessions.change(self._sessions.table.get(self._tenant, session_id), change)

    async def recreate_session(self, session_id: str) -> Session:
        live_session = self._sessions.table.get(self._tenant, session_id)
        await self._opening.recreate(live_session)
        return live_session.session

    async def delete_session(self, session_id: str) -> None:
        try:
            live_session = self._sessions.table.get(self._tenant, session_id)
        except SessionEnded:
            await self._sessions.finish_removal(session_id)
            return
        await self._sessions.end(live_session, EndReason.DELETED)

    # --- execs --------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def _sandbox_call(
        self, session_id: str, *, starts_work: bool = False, has_effects: bool = False
    ) -> AsyncIterator[tuple[LiveSession, Sandbox]]:
        """A call on the session's sandbox with a time limit for the answer. ``starts_work``: the
        call starts something new. ``has_effects``: it may have taken effect even if no answer
        comes.
        """
        using = self._sessions.use(self._tenant, session_id, starts_work=starts_work)
        grace_s, has_effects = self._options.exec_grace_s, has_effects or starts_work
        async with (
            using as (live_session, sandbox),
            live_session.awaiting_response(grace_s, may_have_executed=has_effects),
        ):
            yield live_session, sandbox

    async def execute(self, session_id: str, request: ExecRequest, stdin: bytes | None = None) -> ExecResult:
        bounded = self._options.with_bounded_timeout(request)
        async with self._sessions.use(self._tenant, session_id, resumable=True) as (live_session, sandbox):
            generation = live_session.session.generation
            ends_s, overdue_s = self._options.ends_within_s(bounded), self._options.overdue_after_s(bounded)
            async with live_session.awaiting_response(ends_s, overdue_after_s=overdue_s):
                return with_session(await sandbox.run(bounded, stdin), live_session, generation)

    async def execute_in_thread(
        self, create: CreateSession, request: ExecRequest, stdin: bytes | None = None
    ) -> ThreadRun:
        if create.thread is None:
            raise InvalidRequest("Missing thread.")
        bounded = self._options.with_bounded_timeout(request)
        opened = await self.create_session(create)
        return ThreadRun(opened, await self.execute(opened.session.id, bounded, stdin))

    async def start_exec(self, session_id: str, request: ExecRequest, *, offset: int = 0) -> Execution:
        bounded = self._options.with_bounded_timeout(request)
        async with self._sandbox_call(session_id, starts_work=True) as (live_session, sandbox):
            return self._execution(await sandbox.start(bounded, offset=offset), live_session, sandbox, offset)

    async def attach_exec(self, session_id: str, exec_id: str, *, offset: int = 0) -> Execution:
        async with self._sandbox_call(session_id) as (live_session, sandbox):
            return self._execution(
                await sandbox.attach(exec_id, offset=offset), live_session, sandbox, offset
            )

    def _execution(
        self, inner: Execution, live_session: LiveSession, sandbox: Sandbox, offset: int
    ) -> SessionExecution:
        async def explain(error: SandboxLost) -> SandlotError:
            return await self._sessions.explain(live_session, sandbox, error)

        return SessionExecution(inner, live_session, explain, offset)

    async def get_exec(self, session_id: str, exec_id: str, *, wait_s: float = 0) -> ExecStatus:
        if wait_s > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    return await self._ended_status(session_id, exec_id)
        execs = await self.list_execs(session_id)
        running = next((known.running for known in execs if known.exec_id == exec_id), None)
        if running is None:
            # Either the exec is unknown, and attaching raises, or it has just started.
            await (await self.attach_exec(session_id, exec_id)).detach()
            running = True
        # The result of an ended exec is read completely, even if ``wait_s`` is short.
        return ExecStatus(exec_id, running=True) if running else await self._ended_status(session_id, exec_id)

    async def _ended_status(self, session_id: str, exec_id: str) -> ExecStatus:
        execution = await self.attach_exec(session_id, exec_id)
        try:
            return ExecStatus(exec_id, running=False, result=await execution.result())
        finally:
            await execution.detach()

    async def list_execs(self, session_id: str) -> Sequence[ExecSummary]:
        async with self._sandbox_call(session_id) as (_, sandbox):
            return await sandbox.list_execs()

    async def signal_exec(self, session_id: str, exec_id: str, signal: int) -> int:
        async with self._sandbox_call(session_id, has_effects=True) as (_, sandbox):
            return await sandbox.signal(exec_id, signal)

    async def kill_exec(self, session_id: str, exec_id: str) -> int:
        async with self._sandbox_call(session_id, has_effects=True) as (_, sandbox):
            return await sandbox.kill(exec_id)

    async def resize_exec(self, session_id: str, exec_id: str, *, rows: int, cols: int) -> None:
        async with self._sandbox_call(session_id, has_effects=True) as (_, sandbox):
            await sandbox.resize(exec_id, rows=rows, cols=cols)

    # --- shells and files ---------------------------------------------------------------------

    async def list_shells(self, session_id: str) -> Sequence[ShellSummary]:
        async with self._sandbox_call(session_id) as (_, sandbox):
            return await sandbox.list_shells()

    async def close_shell(self, session_id: str, name: str) -> None:
        async with self._sandbox_call(session_id, has_effects=True) as (_, sandbox):
            await sandbox.close_shell(name)

    def files(self, session_id: str) -> Files:
        return SessionFiles(self._sessions, self._tenant, session_id)

    # --- the service itself -------------------------------------------------------------------

    async def catalogue(self) -> Catalogue:
        return self._catalogue

    async def health(self) -> ServiceHealth:
        ready = self._open and not self._stopping and self._registrar.joined
        return ServiceHealth(
            ready=ready,
            creates=ready and not self._draining and not self._disk_problems,
            worker_id=self._options.worker_id,
            version=__version__,
            active_sessions=self.session_count,
            calls_under_way=self._sessions.calls,
            pools={name: pool.stats() for name, pool in self._pools.items()},
            problems=(*self._own_problems(), *self.condition().problems),
        )

    def _own_problems(self) -> tuple[str, ...]:
        if self._stopping:
            return ("stopping",)
        fleet = self._registrar.problem
        return (*(("draining",) if self._draining else ()), *(() if fleet is None else (fleet,)))
