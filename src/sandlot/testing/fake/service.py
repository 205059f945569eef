"""``FakeService``: the whole ``SandboxService`` contract in memory, for tests of code built on it.

It keeps every promise that needs no real computer. The small shell of ``shell.py`` runs commands, or a test
scripts them. Sessions expire when a call looks at them, by the given clock. Only execs run in the background.
"""

from __future__ import annotations

import copy
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import replace

from sandlot import __version__
from sandlot.domain import session_states as states
from sandlot.domain.callers.limits import AllowancesOf, Use, check_room, no_allowances, total_use, use_of
from sandlot.domain.callers.principal import OWNER, Principal
from sandlot.domain.callers.scoped_service import scoped
from sandlot.domain.capacity.readiness import Readiness, ReadinessState
from sandlot.domain.computer import ExecSummary, Execution, Files, ShellSummary
from sandlot.domain.environment import Environment, Recipe, unknown_environment_error, with_provider
from sandlot.domain.errors import IdempotencyMismatch, InvalidRequest, Unavailable
from sandlot.domain.execution import ExecRequest, ExecResult
from sandlot.domain.history.query import EventPage, EventQuery
from sandlot.domain.paging import page_of
from sandlot.domain.policy.tenant_policies import TenantPolicies
from sandlot.domain.service import (
    Catalogue,
    EnvironmentInfo,
    ExecStatus,
    Opened,
    SandboxService,
    ServiceHealth,
    SessionPage,
    ThreadRun,
)
from sandlot.domain.session import (
    DEFAULT_ENVIRONMENT,
    CreateSession,
    EndReason,
    Predecessor,
    Session,
    SessionChange,
    SessionState,
    Timeout,
)
from sandlot.domain.thread_options import check_thread_options
from sandlot.testing.fake.artifacts.calls import ArtifactCalls
from sandlot.testing.fake.artifacts.store import FakeArtifacts
from sandlot.testing.fake.code.calls import ContextCalls
from sandlot.testing.fake.computer import FakeComputer
from sandlot.testing.fake.execs import FakeExec, FakeExecution
from sandlot.testing.fake.history import FakeHistory, RecordedFiles
from sandlot.testing.fake.network.calls import NetworkCalls
from sandlot.testing.fake.network.session_network import FakeNetwork
from sandlot.testing.fake.records import Record, check_policies, full_pool, new_session
from sandlot.testing.fake.scripts import Call, Scripts
from sandlot.testing.fake.volumes.calls import VolumeCalls
from sandlot.testing.fake.volumes.store import FakeVolumes
from sandlot.testing.fake.workspaces.calls import WorkspaceCalls
from sandlot.testing.fake.workspaces.store import FakeSnapshots, FakeStore


class FakeService(ArtifactCalls, VolumeCalls, WorkspaceCalls, NetworkCalls, ContextCalls):
    def __init__(
        self,
        *,
        recipes: Iterable[Recipe] = (Recipe(Environment(DEFAULT_ENVIRONMENT, "sandlot/base:latest")),),
        clock: Callable[[], float] = time.time,
        max_execs: int = 32,
        allow_never: bool = True,
        allowances: AllowancesOf = no_allowances,
        worker_id: str = "fake",
        tenant_policies: TenantPolicies | None = None,
        store: FakeStore | None = None,
    ) -> None:
        self._principal = OWNER
        self.scripts = Scripts()
        self.calls: list[Call] = []
        self._recipes = {recipe.environment.name: recipe for recipe in recipes}
        self._clock = clock
        self._began = clock()
        self._max_execs = max_execs
        self._allow_never = allow_never
        self._allowances = allowances
        self._policies = tenant_policies or TenantPolicies()
        self._records: dict[str, Record] = {}
        self._threads: dict[tuple[str, str], Record] = {}
        self._keys: dict[tuple[str, str], Record] = {}
        self._predecessors: dict[tuple[str, str], Predecessor] = {}
        self._worker_id = worker_id
        self._history = FakeHistory(worker_id, clock)
        self._snapshots = FakeSnapshots(store or FakeStore(), worker_id, clock)
        self._volumes = FakeVolumes(self._snapshots.store, worker_id, clock)
        self._artifacts = FakeArtifacts(worker_id, clock)
        self._closed = False

    def acting_for(self, principal: Principal) -> SandboxService:
        """The same sandboxes, as another caller sees them."""
        other = copy.copy(self)
        vars(other)["_principal"] = principal
        return scoped(other, principal)

    # --- sessions ---------------------------------------------------------------------------------

    async def create_session(self, request: CreateSession) -> Opened:
        # No await until the session is recorded: this guarantees one session per thread and key.
        if self._closed:
            raise Unavailable("This service is closed.")
        providers = {name: recipe.environment.provider for name, recipe in self._recipes.items()}
        request = with_provider(request, providers)
        if request.idempotency_key is not None:
            known = self._keys.get((self._principal.tenant, request.idempotency_key))
            if known is not None:
                if known.request != request:
                    raise IdempotencyMismatch(
                        "This idempotency key was already used for a different request. Use a new key."
                    )
                return Opened(self._record(known.session.id).session, created=False)
        if request.thread is not None:
            existing = self._threads.get((self._principal.tenant, request.thread))
            if existing is not None and not self._expire(existing):
                check_thread_options(request, existing.session, existing.request.env)
                self._wake(existing)
                if existing.session.state is SessionState.LOST and request.recreate_lost:
                    self._recreate(existing)
                self._touch(existing)
                return Opened(existing.visible_session, created=False)
        return Opened(self._open(request).session, created=True)

    def _open(self, request: CreateSession) -> Record:
        name = request.environment or DEFAULT_ENVIRONMENT
        recipe = self._recipes.get(name)
        if recipe is None:
            raise unknown_environment_error(
                name, {name: recipe.environment.tier for name, recipe in self._recipes.items()}
            )
        snapshot = None
        if request.snapshot is not None:
            snapshot = self._snapshots.get(self._principal.tenant, request.snapshot)
        session = new_session(
            self._principal,
            request,
            recipe,
            self._clock(),
            self._predecessors.get((self._principal.tenant, request.thread or "")),
            never_allowed=self._allow_never,
        )
        volumes = self._volumes.resolve(self._principal.tenant, request.volumes)
        session = replace(session, volumes=volumes)
        self._check_volumes(session)
        for allowance in self._allowances(self._principal):
            check_room(allowance, self._use(allowance.holder), use_of(session.limits))
        record = Record(session, request, None, FakeNetwork(recipe, request, self._clock))
        self._give_first_computer(record, snapshot)
        self._records[session.id] = record
        if request.thread is not None:
            self._threads[session.tenant, request.thread] = record
        if request.idempotency_key is not None:
            self._keys[session.tenant, request.idempotency_key] = record
        self._history.opened(record.session, self._principal, created=True)
        return record

    async def get_session(self, session_id: str) -> Session:
        return self._record(session_id).visible_session

    async def list_sessions(
        self, *, thread: str | None = None, after: str | None = None, limit: int = 100
    ) -> SessionPage:
        sessions = [
            record.visible_session
            for record in self._records.values()
            if not self._expire(record) and self._owns(record) and thread in (None, record.session.thread)
        ]
        return page_of(sessions, after=after, limit=limit)

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

    async def delete_session(self, session_id: str) -> None:
        record = self._records.get(session_id)
        if record is None or not self._owns(record):
            raise states.no_session_error(session_id)
        computer = record.computer
        if not self._expire(record):
            self._end(record, EndReason.DELETED)
        if computer is not None:
            await computer.end(states.ended_error(record.session))

    # --- execs ------------------------------------------------------------------------------------

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
            raise InvalidRequest("Missing thread.")
        opened = await self.create_session(create)
        return ThreadRun(opened, await self.execute(opened.session.id, request, stdin))

    async def start_exec(self, session_id: str, request: ExecRequest, *, offset: int = 0) -> Execution:
        return self._start(session_id, request, offset)

    def _start(self, session_id: str, request: ExecRequest, offset: int) -> FakeExecution:
        computer = self._computer(session_id, starts_work=True)
        session = self._record(session_id).session
        language = None if request.cell is None else computer.contexts.language_of(request.cell)
        recipe, own = self._recipes[session.environment], self._policies.of(session.tenant)
        check_policies(recipe, own, request, language)
        new = not computer.has_exec(request.exec_id)
        if new:
            self._history.check_slots(self._allowances(self._principal))
        reader = computer.start(request, offset=offset)
        if new:
            self.calls.append(Call(session_id, request))
            self._history.exec_started(self._records[session_id], request, self._principal)
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

    # --- shells and files -------------------------------------------------------------------------

    async def list_shells(self, session_id: str) -> Sequence[ShellSummary]:
        return self._computer(session_id).list_shells()

    async def close_shell(self, session_id: str, name: str) -> None:
        await self._computer(session_id).close_shell(name)

    def files(self, session_id: str) -> Files:
        return RecordedFiles(
            lambda: self._computer(session_id, starts_work=True).tree,
            self._history,
            lambda: self._record(session_id),
            self._principal,
        )

    async def list_events(self, query: EventQuery) -> EventPage:
        return await self._history.page(self._principal, query)

    async def read_recording(self, session_id: str) -> AsyncIterator[bytes]:
        yield self._history.recording(self._principal, session_id)

    # --- the service itself -----------------------------------------------------------------------

    async def catalogue(self) -> Catalogue:
        readiness = (Readiness(self._worker_id, ReadinessState.READY, since=self._began),)
        return Catalogue(
            tuple(
                replace(EnvironmentInfo.of(recipe), readiness=readiness) for recipe in self._recipes.values()
            )
        )

    async def use(self, holder: str) -> Use:
        return self._use(holder)

    def _use(self, holder: str) -> Use:
        alive = (record.session for record in self._records.values() if not self._expire(record))
        return total_use(holder, alive)

    async def health(self) -> ServiceHealth:
        live = [record for record in self._records.values() if not self._expire(record)]
        health = ServiceHealth(
            ready=not self._closed,
            creates=not self._closed,
            worker_id=self._worker_id,
            version=__version__,
            active_sessions=len(live),
            calls_under_way=sum(record.computer.running for record in live if record.computer is not None),
            pools={name: full_pool(recipe) for name, recipe in self._recipes.items()},
        )
        return health.visible_to(self._principal, own_sessions=sum(map(self._owns, live)))

    async def close(self) -> None:
        self._closed = True
        for record in self._records.values():
            if record.computer is not None:
                await record.computer.end(Unavailable("The service was closed.", may_have_executed=True))

    # --- records ----------------------------------------------------------------------------------

    def _record(self, session_id: str) -> Record:
        record = self._records.get(session_id)
        if record is None or not self._owns(record):
            raise states.no_session_error(session_id)
        if self._expire(record):
            raise states.ended_error(record.session)
        return record

    def _owns(self, record: Record) -> bool:
        return record.session.tenant == self._principal.tenant

    def _computer(self, session_id: str, *, starts_work: bool = False) -> FakeComputer:
        """``starts_work``: the call starts something new, which a session past its lifetime refuses."""
        record = self._record(session_id)
        self._wake(record)
        if starts_work and states.expiry_reason(record.session, self._clock()) is EndReason.LIFETIME:
            error = states.ended_error(states.end(record.session, EndReason.LIFETIME, self._clock()))
            error.retryable, error.retry_after_s = record.session.thread is not None, 1.0
            raise error
        if record.computer is None:
            raise states.lost_error(record.session, may_have_executed=False)
        if record.computer.frozen:
            raise states.unresponsive_error(session_id, "does not answer", may_have_executed=False)
        self._touch(record)
        return record.computer

    def _exec_ended(self, record: Record, ended: FakeExec) -> None:
        self._touch(record)
        self._history.exec_ended(record.session, ended)

    def _touch(self, record: Record) -> None:
        record.session = states.touch(record.session, self._clock())

    def _expire(self, record: Record) -> bool:
        """Ends the session if it has expired, and returns whether it has ended."""
        reason = states.expiry_reason(record.session, self._clock())
        if reason is not None and record.computer is not None and record.computer.running:
            # Running commands may finish. A session past its lifetime starts nothing new.
            if reason is EndReason.IDLE:
                self._touch(record)
        elif reason is not None and self._hibernates(record):
            self._hibernate(record, reason)
            return self._expire(record)  # its time in hibernation may be over as well
        elif reason is not None:
            self._end(record, reason)
        return record.session.state is SessionState.ENDED

    def _end(self, record: Record, reason: EndReason) -> None:
        self._keep_declared(record)
        self._snapshots.forget_line(record.session)
        record.session = session = states.end(record.session, reason, self._clock())
        self._history.ended(session, self._principal)
        if session.thread is not None and self._threads.get((session.tenant, session.thread)) is record:
            del self._threads[session.tenant, session.thread]
            self._predecessors[session.tenant, session.thread] = states.predecessor(session)
        if record.computer is not None:
            error = states.ended_error(session)
            error.may_have_executed = True
            record.computer.abort(error)
        record.computer = None

    def _timeout(self, asked: Timeout | None, configured: float | None) -> float | None:
        return states.resolve_timeout(asked, configured, never_allowed=self._allow_never)
