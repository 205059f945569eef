"""``FakeService``: the whole ``SandboxService`` contract in memory, for tests of what is built on it.

It keeps every promise that does not need a real computer: threads, idempotency keys, expiry, execs that run once per
id, offsets, loss reports. Commands are run by the small shell of ``shell.py``, or by what a test says they do.
Sessions expire when somebody looks, by the given clock; nothing runs in the background but execs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from sandlot import __version__
from sandlot.domain.computer import ExecSummary, Execution, Files, ShellSummary
from sandlot.domain.environment import Environment, Recipe, no_environment
from sandlot.domain.errors import (
    IdempotencyMismatch,
    InvalidRequest,
    Unavailable,
)
from sandlot.domain.execution import ExecRequest, ExecResult
from sandlot.domain.ids import new_session_id
from sandlot.domain.limits import granted
from sandlot.domain.paging import check_page, cursor, parse_cursor
from sandlot.domain.pool import PoolStats
from sandlot.domain.service import (
    Catalogue,
    EnvironmentInfo,
    ExecStatus,
    Opened,
    ServiceHealth,
    SessionPage,
    ThreadRun,
)
from sandlot.domain.session import (
    DEFAULT_ENVIRONMENT,
    DEFAULT_TENANT,
    CreateSession,
    EndReason,
    Predecessor,
    Session,
    SessionChange,
    SessionState,
    Timeout,
    due,
    end,
    ended_error,
    lose,
    loss_report,
    lost_error,
    no_session,
    predecessor,
    recreate,
    resolve_timeout,
    touch,
    unresponsive,
    unresponsive_error,
)
from sandlot.domain.thread_options import check_same
from sandlot.testing.fake.computer import FakeComputer
from sandlot.testing.fake.execs import FakeExecution
from sandlot.testing.fake.files import FakeFiles
from sandlot.testing.fake.scripts import Call, Scripts
from sandlot.testing.fake.tree import Tree


@dataclass
class _Record:
    session: Session
    request: CreateSession
    computer: FakeComputer | None

    @property
    def shown(self) -> Session:
        silent = self.computer is not None and self.computer.frozen
        return unresponsive(self.session) if silent else self.session


class FakeService:
    def __init__(
        self,
        *,
        recipes: Iterable[Recipe] = (Recipe(Environment(DEFAULT_ENVIRONMENT, "sandlot/base:latest")),),
        clock: Callable[[], float] = time.time,
        max_execs: int = 32,
        allow_never: bool = True,
    ) -> None:
        self.scripts = Scripts()
        self.calls: list[Call] = []
        self._recipes = {recipe.environment.name: recipe for recipe in recipes}
        self._clock = clock
        self._max_execs = max_execs
        self._allow_never = allow_never
        self._records: dict[str, _Record] = {}
        self._threads: dict[tuple[str, str], _Record] = {}
        self._keys: dict[tuple[str, str], _Record] = {}
        self._before: dict[tuple[str, str], Predecessor] = {}
        self._closed = False

    # --- sessions -----------------------------------------------------------------------------

    async def create_session(self, request: CreateSession) -> Opened:
        # No await until the session is on record: this is what makes it one per thread and key.
        if self._closed:
            raise Unavailable("the service is closed")
        if request.idempotency_key is not None:
            known = self._keys.get((DEFAULT_TENANT, request.idempotency_key))
            if known is not None:
                if known.request != request:
                    raise IdempotencyMismatch("this idempotency key was used before, for another request")
                return Opened(self._record(known.session.id).session, created=False)
        if request.thread is not None:
            there = self._threads.get((DEFAULT_TENANT, request.thread))
            if there is not None and not self._expire(there):
                check_same(request, there.session, there.request.env)
                if there.session.state is SessionState.LOST and request.recreate_lost:
                    self._recreate(there)
                self._touch(there)
                return Opened(there.shown, created=False)
        return Opened(self._open(request).session, created=True)

    def _open(self, request: CreateSession) -> _Record:
        name = request.environment or DEFAULT_ENVIRONMENT
        recipe = self._recipes.get(name)
        if recipe is None:
            raise no_environment(name, {name: one.environment.tier for name, one in self._recipes.items()})
        now = self._clock()
        session = Session(
            id=new_session_id(),
            environment=name,
            created_at=now,
            last_active_at=now,
            thread=request.thread,
            idle_timeout_s=self._timeout(request.idle_timeout_s, recipe.idle_timeout_s),
            lifetime_s=self._timeout(request.lifetime_s, recipe.lifetime_s),
            limits=granted(request.limits, recipe.environment.limits, recipe.ceilings, name),
            metadata=dict(request.metadata),
            predecessor=self._before.get((DEFAULT_TENANT, request.thread)) if request.thread else None,
        )
        record = _Record(session, request, None)
        self._equip(record)
        record.session = replace(session, sandbox_id=record.computer.id if record.computer else None)
        self._records[session.id] = record
        if request.thread is not None:
            self._threads[session.tenant, request.thread] = record
        if request.idempotency_key is not None:
            self._keys[session.tenant, request.idempotency_key] = record
        return record

    def _equip(self, record: _Record) -> str:
        def sign(result: ExecResult) -> ExecResult:
            return replace(result, session_id=record.session.id, generation=generation)

        generation = record.session.generation
        if record.session.state is SessionState.LOST:
            generation += 1
        record.computer = FakeComputer(
            env=record.request.env,
            max_execs=self._max_execs,
            scripts=self.scripts,
            sign=sign,
            ended=lambda: self._touch(record),
        )
        return record.computer.id

    async def get_session(self, session_id: str) -> Session:
        return self._record(session_id).shown

    async def list_sessions(
        self, *, thread: str | None = None, after: str | None = None, limit: int = 100
    ) -> SessionPage:
        check_page(limit)
        if after is not None:
            parse_cursor(after)
        found = sorted(
            (
                record.shown
                for record in self._records.values()
                if not self._expire(record)
                and thread in (None, record.session.thread)
                and (after is None or cursor(record.session) > after)
            ),
            key=cursor,
        )
        return SessionPage(tuple(found[:limit]), cursor(found[limit - 1]) if len(found) > limit else None)

    async def update_session(self, session_id: str, change: SessionChange) -> Session:
        record = self._record(session_id)
        session = record.session
        record.session = replace(
            session,
            idle_timeout_s=self._timeout(change.idle_timeout_s, session.idle_timeout_s),
            lifetime_s=self._timeout(change.lifetime_s, session.lifetime_s),
            metadata=session.metadata if change.metadata is None else dict(change.metadata),
        )
        self._touch(record)
        return record.session

    async def recreate_session(self, session_id: str) -> Session:
        record = self._record(session_id)
        if record.computer is not None and record.computer.frozen:
            self.lose(session_id, "it did not answer, and was given up on request")
        self._recreate(record)
        return record.session

    def _recreate(self, record: _Record) -> None:
        recreate(record.session, "", self._clock())  # says why not, before anything is done
        record.session = recreate(record.session, self._equip(record), self._clock())

    async def delete_session(self, session_id: str) -> None:
        record = self._records.get(session_id)
        if record is None:
            raise no_session(session_id)
        computer = record.computer
        if not self._expire(record):
            self._end(record, EndReason.DELETED)
        if computer is not None:
            await computer.end(ended_error(record.session))

    def lose(self, session_id: str, reason: str = "the sandbox was taken away by the test") -> None:
        """For tests: the session's sandbox is gone, as when its machine's engine removed it."""
        record = self._record(session_id)
        report = loss_report(record.session, reason, self._clock())
        record.session = lose(record.session, report)
        computer, record.computer = record.computer, None
        if computer is not None:
            computer.cut(lost_error(record.session, may_have_executed=True))

    def freeze(self, session_id: str) -> None:
        """For tests: the session's sandbox is there and does not answer, as a paused container."""
        computer = self._computer(session_id)
        computer.freeze(unresponsive_error(session_id, "does not answer any more", may_have_executed=True))

    def thaw(self, session_id: str) -> None:
        """For tests: it answers again."""
        computer = self._record(session_id).computer
        if computer is not None:
            computer.freeze(None)

    # --- execs --------------------------------------------------------------------------------

    async def execute(self, session_id: str, request: ExecRequest, stdin: bytes | None = None) -> ExecResult:
        if stdin is not None and not request.stdin:
            request = replace(request, stdin=True)
        reader = self._start(session_id, request, 0)
        if stdin is not None:
            self._computer(session_id).exec(request.exec_id).feed(stdin)
        return await reader.result()

    async def execute_in_thread(
        self, create: CreateSession, request: ExecRequest, stdin: bytes | None = None
    ) -> ThreadRun:
        if create.thread is None:
            raise InvalidRequest("a thread is missing")
        opened = await self.create_session(create)
        return ThreadRun(opened, await self.execute(opened.session.id, request, stdin))

    async def start_exec(self, session_id: str, request: ExecRequest, *, offset: int = 0) -> Execution:
        return self._start(session_id, request, offset)

    def _start(self, session_id: str, request: ExecRequest, offset: int) -> FakeExecution:
        computer = self._computer(session_id, begins=True)
        new = not computer.knows(request.exec_id)
        reader = computer.start(request, offset=offset)
        if new:
            self.calls.append(Call(session_id, request))
        return reader

    async def attach_exec(self, session_id: str, exec_id: str, *, offset: int = 0) -> Execution:
        return self._computer(session_id).attach(exec_id, offset=offset)

    async def get_exec(self, session_id: str, exec_id: str, *, wait_s: float = 0) -> ExecStatus:
        computer = self._computer(session_id)
        known = computer.exec(exec_id)
        await known.wait_end(wait_s)
        if known.running:
            return ExecStatus(exec_id, running=True)
        return ExecStatus(exec_id, running=False, result=await computer.attach(exec_id).result())

    async def list_execs(self, session_id: str) -> Sequence[ExecSummary]:
        return self._computer(session_id).list_execs()

    async def signal_exec(self, session_id: str, exec_id: str, signal: int) -> int:
        return self._computer(session_id).signal(exec_id, signal)

    async def kill_exec(self, session_id: str, exec_id: str) -> int:
        return self._computer(session_id).kill(exec_id)

    async def resize_exec(self, session_id: str, exec_id: str, *, rows: int, cols: int) -> None:
        self._computer(session_id).exec(exec_id).resize(rows, cols)

    # --- shells and files ---------------------------------------------------------------------

    async def list_shells(self, session_id: str) -> Sequence[ShellSummary]:
        return self._computer(session_id).list_shells()

    async def close_shell(self, session_id: str, name: str) -> None:
        await self._computer(session_id).close_shell(name)

    def files(self, session_id: str) -> Files:
        def tree() -> Tree:
            return self._computer(session_id, begins=True).tree

        return FakeFiles(tree)

    # --- the service itself -------------------------------------------------------------------

    async def catalogue(self) -> Catalogue:
        return Catalogue(tuple(EnvironmentInfo.of(recipe) for recipe in self._recipes.values()))

    async def health(self) -> ServiceHealth:
        live = [record for record in self._records.values() if not self._expire(record)]
        return ServiceHealth(
            ready=not self._closed,
            creates=not self._closed,
            worker_id="fake",
            version=__version__,
            active_sessions=len(live),
            calls_under_way=sum(record.computer.running for record in live if record.computer is not None),
            pools={name: _pool(recipe) for name, recipe in self._recipes.items()},
        )

    async def close(self) -> None:
        self._closed = True
        for record in self._records.values():
            if record.computer is not None:
                await record.computer.end(Unavailable("the service was closed", may_have_executed=True))

    # --- records ------------------------------------------------------------------------------

    def _record(self, session_id: str) -> _Record:
        record = self._records.get(session_id)
        if record is None:
            raise no_session(session_id)
        if self._expire(record):
            raise ended_error(record.session)
        return record

    def _computer(self, session_id: str, *, begins: bool = False) -> FakeComputer:
        """The session's sandbox, because something is done with it: that extends the idle time. ``begins``:
        something new, which a session whose lifetime is over refuses.
        """
        record = self._record(session_id)
        if begins and due(record.session, self._clock()) is EndReason.LIFETIME:
            over = ended_error(end(record.session, EndReason.LIFETIME, self._clock()))
            over.retryable, over.retry_after_s = record.session.thread is not None, 1.0
            raise over
        if record.computer is None:
            raise lost_error(record.session, may_have_executed=False)
        if record.computer.frozen:
            raise unresponsive_error(session_id, "does not answer", may_have_executed=False)
        self._touch(record)
        return record.computer

    def _touch(self, record: _Record) -> None:
        record.session = touch(record.session, self._clock())

    def _expire(self, record: _Record) -> bool:
        """Whether the session has ended, by now."""
        reason = due(record.session, self._clock())
        if reason is not None and record.computer is not None and record.computer.running:
            # What was accepted is let finish; after its lifetime nothing new begins.
            if reason is EndReason.IDLE:
                self._touch(record)
        elif reason is not None:
            self._end(record, reason)
        return record.session.state is SessionState.ENDED

    def _end(self, record: _Record, reason: EndReason) -> None:
        record.session = session = end(record.session, reason, self._clock())
        if session.thread is not None and self._threads.get((session.tenant, session.thread)) is record:
            del self._threads[session.tenant, session.thread]
            self._before[session.tenant, session.thread] = predecessor(session)
        if record.computer is not None:
            gone = ended_error(session)
            gone.may_have_executed = True
            record.computer.cut(gone)
        record.computer = None

    def _timeout(self, asked: Timeout | None, configured: float | None) -> float | None:
        return resolve_timeout(asked, configured, never_allowed=self._allow_never)


def _pool(recipe: Recipe) -> PoolStats:
    """A pool that is always full: a fake sandbox takes no time."""
    size = recipe.pool.size
    return PoolStats(ready=size, making=0, waiting=0, target=size, target_reason="a fake", hits=0)
