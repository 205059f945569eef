"""``WorkerService``: one caller's sessions and sandboxes on this worker."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from functools import partial

from sandlot.domain.callers.principal import Principal
from sandlot.domain.capacity.usage import SandboxUsage
from sandlot.domain.computer import ByteStream, ExecSummary, Execution, Files, ShellSummary
from sandlot.domain.environment import with_provider
from sandlot.domain.errors import InvalidRequest, NotFound, SandboxLost, SandlotError, SessionEnded
from sandlot.domain.execution import ExecRequest, ExecResult, PtySize, Started
from sandlot.domain.history.query import EventPage, EventQuery
from sandlot.domain.history.recorder import called_by
from sandlot.domain.network.ports import ExposePort, Exposure, Preview
from sandlot.domain.network.status import NetworkChange, NetworkStatus
from sandlot.domain.paging import page_of
from sandlot.domain.recordings.reports import no_recording_error
from sandlot.domain.service import Catalogue, ExecStatus, Opened, ServiceHealth, SessionPage, ThreadRun
from sandlot.domain.session import Assignment, CreateSession, EndReason, Session, SessionChange
from sandlot.domain.workspaces.snapshots import (
    Difference,
    Restored,
    RestoreSnapshot,
    Snapshot,
    SnapshotPage,
    TakeSnapshot,
)
from sandlot.domain.workspaces.workspace import WorkspaceStatus
from sandlot.providers.base import OnStart, Sandbox
from sandlot.wire.tracing.traces import span
from sandlot.worker.artifacts.calls import ArtifactCalls
from sandlot.worker.assembly import WorkerParts
from sandlot.worker.contexts.calls import ContextCalls, check_id_of_known, check_id_of_new
from sandlot.worker.contexts.cells import shown
from sandlot.worker.contexts.program import BRIDGE_EXEC_ID
from sandlot.worker.history.exec_ends import FOLLOW_AFTER_S
from sandlot.worker.options import WorkerOptions
from sandlot.worker.recordings.session_recording import SessionRecording
from sandlot.worker.sessions.creates import NO_ASSIGNMENT
from sandlot.worker.sessions.executions import SessionExecution, with_denials, with_session
from sandlot.worker.sessions.files import SessionFiles
from sandlot.worker.sessions.live_session import LiveSession
from sandlot.worker.sessions.ports import SessionPorts
from sandlot.worker.status import WorkerStatus
from sandlot.worker.volumes.calls import VolumeCalls


class WorkerService(ArtifactCalls, VolumeCalls, ContextCalls):
    """Implements ``SandboxService`` for one caller. ``WorkerHost.acting_for`` makes it."""

    def __init__(
        self,
        principal: Principal,
        parts: WorkerParts,
        options: WorkerOptions,
        catalogue: Catalogue,
        status: WorkerStatus,
    ) -> None:
        self._principal = principal
        self._tenant = principal.tenant
        self._options = options
        self._catalogue = catalogue
        self._readiness = parts.readiness
        self._status = status
        self._sessions = parts.sessions
        self._opening = parts.opening
        self._creates = parts.creates
        self._policies = parts.policies
        self._networks = parts.networks
        self._history = parts.history
        self._recordings = parts.history.recordings
        self._ports = SessionPorts(parts.sessions, principal)
        self._usage = parts.usage
        self._snapshots = parts.snapshots
        self._artifacts = parts.artifacts
        self._volumes = parts.volumes
        self._contexts = parts.contexts

    # --- sessions -----------------------------------------------------------------------------

    async def create_session(self, request: CreateSession, assignment: Assignment = NO_ASSIGNMENT) -> Opened:
        """``assignment``: what a fleet adds to the request."""
        request = with_provider(request, {each.name: each.provider for each in self._catalogue.environments})
        refusal = await self._status.check_creates()
        with called_by(self._principal):
            return await self._creates.get_or_create(self._principal, request, assignment, refusal)

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
        with called_by(self._principal):
            await self._opening.recreate(live_session)
        return live_session.session

    async def delete_session(self, session_id: str) -> None:
        try:
            live_session = self._sessions.table.get(self._tenant, session_id)
        except SessionEnded:
            await self._sessions.finish_removal(session_id)
            return
        with called_by(self._principal):
            await self._sessions.end(live_session, EndReason.DELETED)

    async def get_usage(self, session_id: str) -> SandboxUsage:
        return await self._usage.of(self._sessions.table.get(self._tenant, session_id))

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

    async def _check_policy(self, session_id: str, request: ExecRequest) -> None:
        check_id_of_new(request.exec_id)
        session = self._sessions.table.get(self._tenant, session_id).session
        language = None
        if request.cell is not None and self._policies.apply_to(session.environment, session.tenant):
            async with self._sessions.use(self._tenant, session_id) as (_, sandbox):
                language = await self._contexts.language_of(sandbox, request.cell)
        await self._policies.check(session.environment, request, session.tenant, language)

    async def execute(self, session_id: str, request: ExecRequest, stdin: bytes | None = None) -> ExecResult:
        bounded = self._options.with_bounded_timeout(request)
        with span("exec", sandlot_exec_id=bounded.exec_id, sandlot_session_id=session_id) as traced:
            result = await self._execute(session_id, bounded, stdin)
            if traced is not None:
                traced.set_attribute("sandlot.verdict", result.verdict.value)
            return result

    async def _execute(self, session_id: str, bounded: ExecRequest, stdin: bytes | None) -> ExecResult:
        await self._check_policy(session_id, bounded)
        async with self._sessions.use(self._tenant, session_id, resumable=True) as (live_session, sandbox):
            generation = live_session.session.generation
            ends_s, overdue_s = self._options.ends_within_s(bounded), self._options.overdue_after_s(bounded)
            execs, exec_id = self._history.execs, bounded.exec_id
            recording = self._recordings.of(live_session)
            on_output = None if recording is None else partial(recording.output, exec_id, from_start=True)
            async with execs.starting(live_session, sandbox, bounded, self._principal) as in_history:
                on_start = _for_both(in_history, recording, bounded)
                asked = bounded
                if bounded.cell is not None:
                    asked, stdin = await self._contexts.exec_for(sandbox, bounded)
                with self._recordings.readers.read_if_left(recording, sandbox, exec_id):
                    async with live_session.awaiting_response(ends_s, overdue_after_s=overdue_s):
                        result = await sandbox.run(asked, stdin, on_start=on_start, on_output=on_output)
            result = with_denials(result, live_session)
            execs.ended(session_id, exec_id, result.exited)
            if recording is not None:
                recording.ended(exec_id, result.exited)
            return with_session(result, live_session, generation)

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
        with span("start exec", sandlot_exec_id=bounded.exec_id, sandlot_session_id=session_id):
            return await self._start(session_id, bounded, offset)

    async def _start(self, session_id: str, bounded: ExecRequest, offset: int) -> Execution:
        await self._check_policy(session_id, bounded)
        async with self._sandbox_call(session_id, starts_work=True) as (live_session, sandbox):
            recording = self._recordings.of(live_session)
            starting = self._history.execs.starting(live_session, sandbox, bounded, self._principal)
            async with starting as in_history:
                on_start = _for_both(in_history, recording, bounded)
                started = await self._start_in(sandbox, bounded, offset, on_start)
            if recording is not None:
                self._recordings.readers.read(recording, sandbox, bounded.exec_id)
            self._history.execs.follow(live_session, sandbox, bounded.exec_id, after_s=FOLLOW_AFTER_S)
            return self._execution(started, live_session, sandbox, offset)

    async def _start_in(
        self, sandbox: Sandbox, request: ExecRequest, offset: int, on_start: OnStart | None
    ) -> Execution:
        if request.cell is None:
            return await sandbox.start(request, offset=offset, on_start=on_start)
        asked, code = await self._contexts.exec_for(sandbox, request)
        started = await sandbox.start(asked, offset=offset, on_start=on_start)
        if code is not None:
            await started.write_stdin(code)
            await started.close_stdin()
        return started

    async def attach_exec(self, session_id: str, exec_id: str, *, offset: int = 0) -> Execution:
        check_id_of_known(exec_id)
        async with self._sandbox_call(session_id) as (live_session, sandbox):
            return self._execution(
                await sandbox.attach(exec_id, offset=offset), live_session, sandbox, offset
            )

    def _execution(
        self, inner: Execution, live_session: LiveSession, sandbox: Sandbox, offset: int
    ) -> SessionExecution:
        async def explain(error: SandboxLost) -> SandlotError:
            return await self._sessions.explain(live_session, sandbox, error)

        recording = self._recordings.of(live_session)
        return SessionExecution(inner, live_session, explain, offset, self._history.execs, recording)

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
            execs = await sandbox.list_execs()
        return [shown(known, sandbox.agent_program) for known in execs if known.exec_id != BRIDGE_EXEC_ID]

    async def signal_exec(self, session_id: str, exec_id: str, signal: int) -> int:
        check_id_of_known(exec_id)
        async with self._sandbox_call(session_id, has_effects=True) as (_, sandbox):
            return await sandbox.signal(exec_id, signal)

    async def kill_exec(self, session_id: str, exec_id: str) -> int:
        check_id_of_known(exec_id)
        async with self._sandbox_call(session_id, has_effects=True) as (_, sandbox):
            return await sandbox.kill(exec_id)

    async def resize_exec(self, session_id: str, exec_id: str, *, rows: int, cols: int) -> None:
        check_id_of_known(exec_id)
        async with self._sandbox_call(session_id, has_effects=True) as (live_session, sandbox):
            await sandbox.resize(exec_id, rows=rows, cols=cols)
            if (recording := self._recordings.of(live_session)) is not None:
                recording.resized(exec_id, PtySize(rows, cols))

    # --- shells and files ---------------------------------------------------------------------

    async def list_shells(self, session_id: str) -> Sequence[ShellSummary]:
        async with self._sandbox_call(session_id) as (_, sandbox):
            return await sandbox.list_shells()

    async def close_shell(self, session_id: str, name: str) -> None:
        async with self._sandbox_call(session_id, has_effects=True) as (_, sandbox):
            await sandbox.close_shell(name)

    def files(self, session_id: str) -> Files:
        return SessionFiles(self._sessions, self._principal, session_id)

    # --- workspaces ---------------------------------------------------------------------------

    async def get_workspace(self, session_id: str) -> WorkspaceStatus:
        return await self._snapshots.status(self._tenant, session_id)

    async def hibernate_session(self, session_id: str) -> Session:
        live_session = self._sessions.table.get(self._tenant, session_id)
        with called_by(self._principal):
            await self._sessions.hibernate(live_session)
        await self._sessions.finish_removal(session_id)  # then none of its processes is left
        return live_session.session

    async def take_snapshot(self, session_id: str, request: TakeSnapshot) -> Snapshot:
        return await self._snapshots.take(self._tenant, session_id, request)

    async def list_snapshots(
        self, *, session_id: str | None = None, after: str | None = None, limit: int = 100
    ) -> SnapshotPage:
        return await self._snapshots.page(self._tenant, session_id, after, limit)

    async def delete_snapshot(self, snapshot_id: str) -> None:
        await self._snapshots.delete(self._tenant, snapshot_id)

    async def compare_snapshot(self, snapshot_id: str, *, to: str | None = None) -> Difference:
        return await self._snapshots.compare(self._tenant, snapshot_id, to)

    async def restore_snapshot(self, session_id: str, request: RestoreSnapshot) -> Restored:
        return await self._snapshots.restore(self._principal, session_id, request)

    # --- network ------------------------------------------------------------------------------

    async def get_network(self, session_id: str) -> NetworkStatus:
        return self._networks.status(self._sessions.table.get(self._tenant, session_id))

    async def change_network(self, session_id: str, change: NetworkChange) -> NetworkStatus:
        live_session = self._sessions.table.get(self._tenant, session_id)
        if live_session.preparing is not None:
            with contextlib.suppress(SandboxLost):  # a policy can be changed without a sandbox
                await live_session.usable_sandbox()
        self._sessions.check_not_given_up(live_session)
        status = await self._networks.change(live_session, change, self._principal)
        live_session.touch()
        await self._sessions.report(live_session)
        return status

    # --- ports --------------------------------------------------------------------------------

    async def connect(self, session_id: str, port: int, *, through: str = "") -> ByteStream:
        return await self._ports.connect(session_id, port, through)

    async def expose_port(self, session_id: str, request: ExposePort) -> Preview:
        """Without a URL: a server in front of the worker has those."""
        return Preview(await self._ports.expose(session_id, request))

    async def unexpose_port(self, session_id: str, port: int) -> None:
        await self._ports.unexpose(session_id, port)

    async def list_exposed(self, session_id: str) -> Sequence[Exposure]:
        return self._ports.exposures(session_id)

    # --- history ------------------------------------------------------------------------------

    async def list_events(self, query: EventQuery) -> EventPage:
        return await self._history.page(self._principal, query)

    async def read_recording(self, session_id: str) -> AsyncIterator[bytes]:
        try:
            async with aclosing(self._recordings.read(self._tenant, session_id)) as pieces:
                async for piece in pieces:
                    yield piece
        except NotFound:
            recorded = False
            with contextlib.suppress(SessionEnded):
                recorded = self._sessions.table.get(self._tenant, session_id).session.record
            raise no_recording_error(session_id, recorded=recorded) from None

    # --- the service itself -------------------------------------------------------------------

    async def catalogue(self) -> Catalogue:
        return self._readiness.on(self._catalogue)

    async def health(self) -> ServiceHealth:
        own = sum(live_session.session.tenant == self._tenant for live_session in self._sessions.table)
        return self._status.health().visible_to(self._principal, own_sessions=own)

    async def close(self) -> None:
        """Does nothing: the worker belongs to all its callers, and its host closes it."""


def _for_both(in_history: OnStart, recording: SessionRecording | None, request: ExecRequest) -> OnStart:
    """What to call once the agent has started a command, for the history and the recording."""
    if recording is None:
        return in_history
    in_recording = recording.on_start(request)

    def started(event: Started) -> None:
        in_recording(event)
        in_history(event)

    return started
