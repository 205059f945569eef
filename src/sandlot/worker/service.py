"""``SandboxService`` on real sandboxes, beside one engine."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from pathlib import Path

import structlog

from sandlot import __version__
from sandlot.domain.computer import ExecSummary, Execution, Files, ShellSummary
from sandlot.domain.environment import Recipe
from sandlot.domain.errors import InvalidRequest, SandboxLost, SandlotError, SessionEnded, Unavailable
from sandlot.domain.execution import ExecRequest, ExecResult
from sandlot.domain.machine import Condition
from sandlot.domain.paging import check_page, cursor, parse_cursor
from sandlot.domain.service import Catalogue, ExecStatus, Opened, ServiceHealth, SessionPage, ThreadRun
from sandlot.domain.session import (
    DEFAULT_TENANT,
    Assignment,
    CreateSession,
    EndReason,
    Session,
    SessionChange,
    rested,
    without_worker,
)
from sandlot.providers.base import Provider, Sandbox
from sandlot.worker.assembly import assemble
from sandlot.worker.creates import NO_ASSIGNMENT
from sandlot.worker.executions import SessionExecution, named
from sandlot.worker.live import Live
from sandlot.worker.options import WorkerOptions
from sandlot.worker.problems import broken_environments, disk_problems, silent_sandboxes
from sandlot.worker.refusals import draining, no_room_on_disk, stopping
from sandlot.worker.registrar import Registrar, Unregistered
from sandlot.worker.session_files import SessionFiles
from sandlot.worker.startup import recover
from sandlot.worker.store import SessionRecord

log = structlog.get_logger("sandlot.worker")

# Ended sessions that an emptied directory is told of: how old in seconds, and how many.
TELL_ENDED_S = 3600.0
MAX_ENDED_TOLD = 1000
# Seconds between two looks at whether calls under way have ended.
STOP_LOOK_S = 0.05
# Seconds that a stop gives to commands whose callers wait or read.
EXECS_STOP_S = 2.0


class WorkerService:
    """``open`` first. ``close`` keeps the sessions' sandboxes: the next life adopts them."""

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
        self._orders = parts.orders
        self._sessions = parts.sessions
        self._opening = parts.opening
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
        """Recovers what an earlier life left, and begins to fill the pools."""
        await self._provider.open()
        await self._store.open()
        await self._disk.look()
        await recover(self._opening, self._sandboxes, self._store, self._options, time.time())
        self._reaper.start()
        self._open = True
        for pool in self._pools.values():
            pool.fill()

    async def stop(self) -> None:
        """Takes no new sessions, and waits for what a stop would break: transfers and creates under way.

        Commands go on without us, and whoever waits for one asks the next life by its id: most are over soon,
        and no longer is waited for them.
        """
        self._stopping = True
        began = time.monotonic()
        while (passed_s := time.monotonic() - began) < self._options.drain_timeout_s:
            commands_count = passed_s < EXECS_STOP_S
            if not self._sessions.in_use(commands=commands_count) and not self._creates.under_way:
                break
            await asyncio.sleep(STOP_LOOK_S)

    async def close(self) -> None:
        """Lets go of everything but the sessions' sandboxes; each step is taken whatever the others did."""
        self._stopping = True
        if self._closed:
            return
        self._closed = True
        self._orders.close()
        async with contextlib.AsyncExitStack() as steps:  # the last one first
            steps.push_async_callback(self._store.close)
            steps.push_async_callback(self._provider.close)
            steps.push_async_callback(self._sessions.close)
            steps.push_async_callback(self._creates.finish)
            for pool in self._pools.values():
                steps.push_async_callback(pool.close)
            steps.push_async_callback(self._reaper.close)

    @property
    def session_ids(self) -> set[str]:
        return {live.session.id for live in self._sessions.table}

    async def stop_opening(self) -> None:
        """No new sessions; those that are being opened are open when it returns."""
        self._stopping = True
        await self._creates.finish()

    async def delete_sessions(self, session_ids: Collection[str]) -> None:
        """Ends these, as a worker that lives only as long as its program does before it closes."""
        lives = [live for live in self._sessions.table if live.session.id in session_ids]
        ends = (self._sessions.end(live, EndReason.DELETED) for live in lives)
        for failure in await asyncio.gather(*ends, return_exceptions=True):
            if isinstance(failure, BaseException):
                log.warning("a session's sandbox could not be removed", error=str(failure))

    # --- as a member of a fleet ---------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """Whether its sessions are known: not before it has recovered them."""
        return self._open

    @property
    def session_count(self) -> int:
        """Living and lost ones."""
        return len(self._sessions.table)

    @property
    def draining(self) -> bool:
        """No new sessions; those that are there are served."""
        return self._draining or self._stopping

    def set_draining(self, draining: bool) -> None:
        self._draining = draining

    def generation_of(self, session_id: str) -> int | None:
        """Of a living or lost session."""
        live = self._sessions.table.find(self._tenant, session_id)
        return None if live is None else live.session.generation

    def room(self) -> Mapping[str, tuple[int, int]]:
        """By environment: warm sandboxes that are ready, and how many more sessions fit, these included."""
        if not self._open or self._refusal is not None:
            return dict.fromkeys(self._pools, (0, 0))
        return self._capacity.room(self._pools, self._recipes)

    def condition(self) -> Condition:
        """How the machine does."""
        broken, silent = broken_environments(self._pools), silent_sandboxes(self._sessions.table)
        return Condition(self._capacity.use, (*self._no_room, *broken, *silent))

    @property
    def _no_room(self) -> tuple[str, ...]:
        return disk_problems(self._disk.problem, self._pools.values())

    def recorded_sessions(self) -> Sequence[tuple[Session, str | None]]:
        """With their idempotency keys: all that live or are lost, and those that ended lately."""
        lately = self._sessions.table.ended_since(time.time() - TELL_ENDED_S, MAX_ENDED_TOLD)
        records = [*(live.record for live in self._sessions.table), *lately]
        return [(record.session, record.idempotency_key) for record in records]

    async def take_in_lost(self, session: Session) -> Session | None:
        """A session of a worker that had this one's name, and is gone with its disk."""
        table = self._sessions.table
        if session.thread is not None and table.of_thread(session.tenant, session.thread) is not None:
            return None
        now = time.time()
        # Rested: when it was last used was known to the other one alone.
        lost = rested(without_worker(session, now, self._options.worker_id), now)
        record = SessionRecord(lost)
        await self._store.save([record])
        table.add(record)
        return lost

    async def give_up(self, session_ids: Collection[str]) -> None:
        """Sessions that are another worker's now: nothing of them stays here."""
        lives = [live for live in self._sessions.table if live.session.id in session_ids]
        await asyncio.gather(*(self._sessions.give_up(live) for live in lives))

    async def warnings(self) -> Sequence[str]:
        """What an operator should know about the engine."""
        return await self._provider.warnings()

    # --- sessions -----------------------------------------------------------------------------

    async def create_session(self, request: CreateSession, assignment: Assignment | None = None) -> Opened:
        """``assignment``: what a fleet adds to it."""
        if self._closed or not self._open:
            raise stopping()
        if self._disk.problem is not None:
            await self._disk.look()  # it may have room again
        return await self._creates.get_or_create(request, assignment or NO_ASSIGNMENT, self._refusal)

    @property
    def _refusal(self) -> Unavailable | None:
        """Why no new session is taken now, if none is."""
        if self._stopping:
            return stopping()
        if self._draining:
            return draining()
        return None if self._disk.problem is None else no_room_on_disk(self._disk.problem)

    async def get_session(self, session_id: str) -> Session:
        return self._sessions.table.get(self._tenant, session_id).shown

    async def list_sessions(
        self, *, thread: str | None = None, after: str | None = None, limit: int = 100
    ) -> SessionPage:
        check_page(limit)
        sessions = sorted(
            (
                live.shown
                for live in self._sessions.table
                if live.session.tenant == self._tenant and thread in (None, live.session.thread)
            ),
            key=cursor,
        )
        if after is not None:
            parse_cursor(after)
            sessions = [session for session in sessions if cursor(session) > after]
        page = tuple(sessions[:limit])
        return SessionPage(page, cursor(page[-1]) if len(sessions) > limit else None)

    async def update_session(self, session_id: str, change: SessionChange) -> Session:
        return await self._sessions.change(self._sessions.table.get(self._tenant, session_id), change)

    async def recreate_session(self, session_id: str) -> Session:
        live = self._sessions.table.get(self._tenant, session_id)
        await self._opening.recreate(live)
        return live.session

    async def delete_session(self, session_id: str) -> None:
        try:
            live = self._sessions.table.get(self._tenant, session_id)
        except SessionEnded:
            await self._sessions.finish_removal(session_id)
            return
        await self._sessions.end(live, EndReason.DELETED)

    # --- execs --------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def _asking(
        self, session_id: str, *, begins: bool = False, acts: bool = False
    ) -> AsyncIterator[tuple[Live, Sandbox]]:
        """A call that its sandbox answers in time, or that ends without an answer. ``begins``: something new;
        ``acts``: something may have been done all the same.
        """
        using = self._sessions.use(self._tenant, session_id, begins=begins)
        grace_s, acts = self._options.exec_grace_s, acts or begins
        async with using as (live, sandbox), live.answering(grace_s, may_have_executed=acts):
            yield live, sandbox

    async def execute(self, session_id: str, request: ExecRequest, stdin: bytes | None = None) -> ExecResult:
        bounded = self._options.bounded(request)
        async with self._sessions.use(self._tenant, session_id, survives=True) as (live, sandbox):
            generation = live.session.generation
            ends_s, overdue_s = self._options.ends_within(bounded), self._options.overdue_after(bounded)
            async with live.answering(ends_s, overdue_after_s=overdue_s):
                return named(await sandbox.run(bounded, stdin), live, generation)

    async def execute_in_thread(
        self, create: CreateSession, request: ExecRequest, stdin: bytes | None = None
    ) -> ThreadRun:
        if create.thread is None:
            raise InvalidRequest("say which thread")
        bounded = self._options.bounded(request)
        opened = await self.create_session(create)
        return ThreadRun(opened, await self.execute(opened.session.id, bounded, stdin))

    async def start_exec(self, session_id: str, request: ExecRequest, *, offset: int = 0) -> Execution:
        bounded = self._options.bounded(request)
        async with self._asking(session_id, begins=True) as (live, sandbox):
            return self._execution(await sandbox.start(bounded, offset=offset), live, sandbox, offset)

    async def attach_exec(self, session_id: str, exec_id: str, *, offset: int = 0) -> Execution:
        async with self._asking(session_id) as (live, sandbox):
            return self._execution(await sandbox.attach(exec_id, offset=offset), live, sandbox, offset)

    def _execution(self, inner: Execution, live: Live, sandbox: Sandbox, offset: int) -> SessionExecution:
        async def explain(error: SandboxLost) -> SandlotError:
            return await self._sessions.explain(live, sandbox, error)

        return SessionExecution(inner, live, explain, offset)

    async def get_exec(self, session_id: str, exec_id: str, *, wait_s: float = 0) -> ExecStatus:
        if wait_s > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    return await self._ended(session_id, exec_id)
        execs = await self.list_execs(session_id)
        running = next((known.running for known in execs if known.exec_id == exec_id), None)
        if running is None:
            # Not known, which attaching says; or it has begun since, and then it was running.
            await (await self.attach_exec(session_id, exec_id)).detach()
            running = True
        # One that has ended is read to its end, however little time was given for waiting.
        return ExecStatus(exec_id, running=True) if running else await self._ended(session_id, exec_id)

    async def _ended(self, session_id: str, exec_id: str) -> ExecStatus:
        execution = await self.attach_exec(session_id, exec_id)
        try:
            return ExecStatus(exec_id, running=False, result=await execution.result())
        finally:
            await execution.detach()

    async def list_execs(self, session_id: str) -> Sequence[ExecSummary]:
        async with self._asking(session_id) as (_, sandbox):
            return await sandbox.list_execs()

    async def signal_exec(self, session_id: str, exec_id: str, signal: int) -> int:
        async with self._asking(session_id, acts=True) as (_, sandbox):
            return await sandbox.signal(exec_id, signal)

    async def kill_exec(self, session_id: str, exec_id: str) -> int:
        async with self._asking(session_id, acts=True) as (_, sandbox):
            return await sandbox.kill(exec_id)

    async def resize_exec(self, session_id: str, exec_id: str, *, rows: int, cols: int) -> None:
        async with self._asking(session_id, acts=True) as (_, sandbox):
            await sandbox.resize(exec_id, rows=rows, cols=cols)

    # --- shells and files ---------------------------------------------------------------------

    async def list_shells(self, session_id: str) -> Sequence[ShellSummary]:
        async with self._asking(session_id) as (_, sandbox):
            return await sandbox.list_shells()

    async def close_shell(self, session_id: str, name: str) -> None:
        async with self._asking(session_id, acts=True) as (_, sandbox):
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
            creates=ready and not self._draining and not self._no_room,
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
