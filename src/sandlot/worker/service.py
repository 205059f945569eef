"""``SandboxService`` on real sandboxes, beside one engine."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import structlog

from sandlot import __version__
from sandlot.domain.computer import ExecSummary, Execution, Files, ShellSummary
from sandlot.domain.environment import Recipe
from sandlot.domain.errors import (
    IdempotencyMismatch,
    InvalidRequest,
    SandboxLost,
    SandlotError,
    SessionEnded,
    Unavailable,
)
from sandlot.domain.execution import ExecRequest, ExecResult
from sandlot.domain.service import (
    Catalogue,
    ExecStatus,
    Opened,
    ServiceHealth,
    SessionPage,
    ThreadRun,
)
from sandlot.domain.session import (
    DEFAULT_TENANT,
    CreateSession,
    EndReason,
    Session,
    SessionChange,
    SessionState,
    due,
    ended_error,
)
from sandlot.providers.base import Provider, Sandbox
from sandlot.worker.executions import SessionExecution, named
from sandlot.worker.live import Live
from sandlot.worker.options import WorkerOptions
from sandlot.worker.pool import Pool
from sandlot.worker.reaper import Reaper
from sandlot.worker.sandboxes import Sandboxes
from sandlot.worker.session_files import SessionFiles
from sandlot.worker.sessions import Sessions
from sandlot.worker.startup import recover
from sandlot.worker.store import Store

log = structlog.get_logger("sandlot.worker")

MAX_PAGE = 1000
# Seconds between two looks at whether calls under way have ended.
DRAIN_LOOK_S = 0.05


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
    ) -> None:
        self._provider = provider
        self._recipes = dict(recipes)
        self._catalogue = catalogue
        self._options = options or WorkerOptions()
        self._tenant = DEFAULT_TENANT
        self._store = Store(database)
        self._sandboxes = Sandboxes(
            provider,
            self._store,
            concurrency=self._options.create_concurrency,
            orphan_grace_s=self._options.orphan_grace_s,
        )
        self._pools = {
            name: Pool(
                recipe,
                self._options,
                make=self._sandboxes.make,
                discard=self._sandboxes.discard,
                slots=self._sandboxes.slots,
            )
            for name, recipe in self._recipes.items()
        }
        self._sessions = Sessions(
            store=self._store,
            sandboxes=self._sandboxes,
            pools=self._pools,
            recipes=self._recipes,
            options=self._options,
        )
        self._reaper = Reaper(self._sessions, self._sandboxes, self._pools, self._store, self._options)
        self._opening: set[asyncio.Task[Live]] = set()
        self._flights: dict[tuple[str, str], asyncio.Task[Live]] = {}
        self._closed = False
        self._draining = False
        self._open = False

    # --- life ---------------------------------------------------------------------------------

    async def open(self) -> None:
        """Recovers what an earlier life left, and begins to fill the pools."""
        await self._provider.open()
        await self._store.open()
        await recover(self._sessions, self._sandboxes, self._store, self._options, time.time())
        self._reaper.start()
        self._open = True
        for pool in self._pools.values():
            pool.fill()

    async def drain(self) -> None:
        """Takes no new sessions, and waits a while for calls under way; their commands go on without us."""
        self._draining = True
        deadline = time.monotonic() + self._options.drain_timeout_s
        while self._sessions.in_use and time.monotonic() < deadline:  # noqa: ASYNC110  # calls are many, stops rare
            await asyncio.sleep(DRAIN_LOOK_S)

    async def close(self) -> None:
        """Lets go of everything but the sessions' sandboxes; each step is taken whatever the others did."""
        self._draining = True
        if self._closed:
            return
        self._closed = True
        async with contextlib.AsyncExitStack() as steps:  # the last one first
            steps.push_async_callback(self._store.close)
            steps.push_async_callback(self._provider.close)
            steps.push_async_callback(self._sessions.close)
            steps.push_async_callback(self._finish_opening)
            for pool in self._pools.values():
                steps.push_async_callback(pool.close)
            steps.push_async_callback(self._reaper.close)

    async def _finish_opening(self) -> None:
        if self._opening:
            await asyncio.wait(set(self._opening))

    @property
    def session_ids(self) -> set[str]:
        return {live.session.id for live in self._sessions.table}

    async def stop_opening(self) -> None:
        """No new sessions; those that are being opened are open when it returns."""
        self._draining = True
        await self._finish_opening()

    async def delete_sessions(self, session_ids: Collection[str]) -> None:
        """Ends these, as a worker that lives only as long as its program does before it closes."""
        lives = [live for live in self._sessions.table if live.session.id in session_ids]
        ends = (self._sessions.end(live, EndReason.DELETED) for live in lives)
        for failure in await asyncio.gather(*ends, return_exceptions=True):
            if isinstance(failure, BaseException):
                log.warning("a session's sandbox could not be removed", error=str(failure))

    async def warnings(self) -> Sequence[str]:
        """What an operator should know about the engine."""
        return await self._provider.warnings()

    # --- sessions -----------------------------------------------------------------------------

    async def create_session(self, request: CreateSession) -> Opened:
        if self._draining or not self._open:
            raise Unavailable(
                "this server is stopping and takes no new sessions",
                retry_after_s=2.0,
                details={"reason": "stopping"},
            )
        digest = _digest(request)
        names = _flight_names(request)
        while True:
            opened = await self._existing(request, digest)
            if opened is not None:
                return opened
            flight = next((self._flights[name] for name in names if name in self._flights), None)
            if flight is None:
                break
            # The same is being made for somebody else: when that is done, it is found.
            await asyncio.shield(flight)
        return await self._open_new(request, digest, names)

    async def _open_new(self, request: CreateSession, digest: str, names: list[tuple[str, str]]) -> Opened:
        # A task of its own: whoever asked first may go away while others wait for the same.
        task = asyncio.create_task(self._sessions.open(self._tenant, request, digest))
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
            return Opened((await asyncio.shield(task)).session, created=True)
        except asyncio.CancelledError:
            if not names:
                task.cancel()  # nobody could ask for it again
            raise

    async def _existing(self, request: CreateSession, digest: str) -> Opened | None:
        """After its last wait it looks once more: what it returns is true at that moment."""
        if request.idempotency_key is not None:
            record = self._sessions.table.of_key(self._tenant, request.idempotency_key)
            if record is not None:
                if record.request_digest != digest:
                    raise _mismatch(request.idempotency_key)
                if record.session.state is SessionState.ENDED:
                    raise ended_error(record.session)
                return Opened(record.session, created=False)
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
            if live.session.state is SessionState.LOST and request.recreate_lost:
                try:
                    await self._recreate(live)
                except SessionEnded:
                    continue  # deleted meanwhile
            live.touch()
            return Opened(live.session, created=False)
        return None

    async def _recreate(self, live: Live) -> None:
        """Once, however many ask: those who find it done are content."""
        generation = live.session.generation
        try:
            await self._sessions.recreate(live)
        except SandlotError:
            if live.session.generation == generation:
                raise

    async def get_session(self, session_id: str) -> Session:
        return self._sessions.table.get(self._tenant, session_id).session

    async def list_sessions(
        self, *, thread: str | None = None, after: str | None = None, limit: int = 100
    ) -> SessionPage:
        if not 0 < limit <= MAX_PAGE:
            raise InvalidRequest(f"limit must be 1 … {MAX_PAGE}")
        sessions = sorted(
            (
                live.session
                for live in self._sessions.table
                if live.session.tenant == self._tenant and thread in (None, live.session.thread)
            ),
            key=_cursor,
        )
        if after is not None:
            sessions = [session for session in sessions if _cursor(session) > after]
        page = tuple(sessions[:limit])
        return SessionPage(page, _cursor(page[-1]) if len(sessions) > limit else None)

    async def update_session(self, session_id: str, change: SessionChange) -> Session:
        return await self._sessions.change(self._sessions.table.get(self._tenant, session_id), change)

    async def recreate_session(self, session_id: str) -> Session:
        live = self._sessions.table.get(self._tenant, session_id)
        await self._sessions.recreate(live)
        return live.session

    async def delete_session(self, session_id: str) -> None:
        try:
            live = self._sessions.table.get(self._tenant, session_id)
        except SessionEnded:
            await self._sessions.finish_removal(session_id)
            return
        await self._sessions.end(live, EndReason.DELETED)

    # --- execs --------------------------------------------------------------------------------

    async def execute(self, session_id: str, request: ExecRequest, stdin: bytes | None = None) -> ExecResult:
        bounded = self._bounded(request)
        async with self._sessions.use(self._tenant, session_id) as (live, sandbox):
            generation = live.session.generation
            return named(await sandbox.run(bounded, stdin), live, generation)

    async def execute_in_thread(
        self, create: CreateSession, request: ExecRequest, stdin: bytes | None = None
    ) -> ThreadRun:
        if create.thread is None:
            raise InvalidRequest("say which thread")
        bounded = self._bounded(request)
        opened = await self.create_session(create)
        return ThreadRun(opened, await self.execute(opened.session.id, bounded, stdin))

    async def start_exec(self, session_id: str, request: ExecRequest, *, offset: int = 0) -> Execution:
        bounded = self._bounded(request)
        async with self._sessions.use(self._tenant, session_id) as (live, sandbox):
            return self._execution(await sandbox.start(bounded, offset=offset), live, sandbox, offset)

    async def attach_exec(self, session_id: str, exec_id: str, *, offset: int = 0) -> Execution:
        async with self._sessions.use(self._tenant, session_id, begins=False) as (live, sandbox):
            return self._execution(await sandbox.attach(exec_id, offset=offset), live, sandbox, offset)

    def _execution(self, inner: Execution, live: Live, sandbox: Sandbox, offset: int) -> SessionExecution:
        async def explain(error: SandboxLost) -> SandlotError:
            return await self._sessions.explain(live, sandbox, error)

        return SessionExecution(inner, live, explain, offset)

    async def get_exec(self, session_id: str, exec_id: str, *, wait_s: float = 0) -> ExecStatus:
        if wait_s <= 0 and any(
            known.running for known in await self.list_execs(session_id) if known.exec_id == exec_id
        ):
            return ExecStatus(exec_id, running=True)
        execution = await self.attach_exec(session_id, exec_id)
        try:
            # One that has ended is read to its end, however little time was given for waiting.
            async with asyncio.timeout(max(wait_s, 0) or None):
                return ExecStatus(exec_id, running=False, result=await execution.result())
        except TimeoutError:
            return ExecStatus(exec_id, running=True)
        finally:
            await execution.detach()

    async def list_execs(self, session_id: str) -> Sequence[ExecSummary]:
        async with self._sessions.use(self._tenant, session_id, begins=False) as (_, sandbox):
            return await sandbox.list_execs()

    async def signal_exec(self, session_id: str, exec_id: str, signal: int) -> int:
        async with self._sessions.use(self._tenant, session_id, begins=False) as (_, sandbox):
            return await sandbox.signal(exec_id, signal)

    async def kill_exec(self, session_id: str, exec_id: str) -> int:
        async with self._sessions.use(self._tenant, session_id, begins=False) as (_, sandbox):
            return await sandbox.kill(exec_id)

    async def resize_exec(self, session_id: str, exec_id: str, *, rows: int, cols: int) -> None:
        async with self._sessions.use(self._tenant, session_id, begins=False) as (_, sandbox):
            await sandbox.resize(exec_id, rows=rows, cols=cols)

    def _bounded(self, request: ExecRequest) -> ExecRequest:
        """Every exec ends by itself at some time: a session whose time is over waits for it no longer than
        that.
        """
        ceiling = self._options.max_exec_timeout_s
        if request.timeout_s is None:
            # Somebody sits at a terminal, or has started what is meant to go on, and does not know of a
            # timeout that they did not ask for.
            open_ended = request.pty is not None or request.output_limit is None
            usual = ceiling if open_ended else self._options.default_exec_timeout_s
            return replace(request, timeout_s=min(usual, ceiling))
        if request.timeout_s > ceiling:
            raise InvalidRequest(f"timeout_s is at most {ceiling:g} here, not {request.timeout_s:g}")
        return request

    # --- shells and files ---------------------------------------------------------------------

    async def list_shells(self, session_id: str) -> Sequence[ShellSummary]:
        async with self._sessions.use(self._tenant, session_id, begins=False) as (_, sandbox):
            return await sandbox.list_shells()

    async def close_shell(self, session_id: str, name: str) -> None:
        async with self._sessions.use(self._tenant, session_id, begins=False) as (_, sandbox):
            await sandbox.close_shell(name)

    def files(self, session_id: str) -> Files:
        return SessionFiles(self._sessions, self._tenant, session_id)

    # --- the service itself -------------------------------------------------------------------

    async def catalogue(self) -> Catalogue:
        return self._catalogue

    async def health(self) -> ServiceHealth:
        pools = {name: pool.stats() for name, pool in self._pools.items()}
        problems = tuple(
            f"environment {name}: {stats.last_failure}" for name, stats in pools.items() if stats.failures
        )
        return ServiceHealth(
            ready=self._open and not self._draining,
            worker_id=self._options.worker_id,
            version=__version__,
            active_sessions=len(self._sessions.table),
            calls_under_way=self._sessions.calls,
            pools=pools,
            problems=("stopping", *problems) if self._draining else problems,
        )


def _cursor(session: Session) -> str:
    """Sorts as the sessions' age does, and by id among those of one instant."""
    return f"{session.created_at:020.6f}-{session.id}"


def _flight_names(request: CreateSession) -> list[tuple[str, str]]:
    """Creates that share one of these are one create."""
    names = {"thread": request.thread, "key": request.idempotency_key}
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
