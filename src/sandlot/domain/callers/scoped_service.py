"""A ``SandboxService`` that refuses what its caller's scopes do not allow.

Every host puts it around the services that it gives out, so that a scope is checked in one place, whatever
the implementation and the route.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

from sandlot.domain.callers.principal import USER_SCOPES, Principal, Scope
from sandlot.domain.callers.scoped_artifacts import ScopedArtifacts
from sandlot.domain.callers.scoped_contexts import ScopedContexts
from sandlot.domain.callers.scoped_volumes import ScopedVolumes
from sandlot.domain.capacity.usage import SandboxUsage
from sandlot.domain.computer import ByteStream, ExecSummary, Execution, Files, ShellSummary
from sandlot.domain.execution import ExecRequest, ExecResult
from sandlot.domain.history.query import EventPage, EventQuery
from sandlot.domain.network.ports import ExposePort, Exposure, Preview
from sandlot.domain.network.status import NetworkChange, NetworkStatus
from sandlot.domain.service import (
    Catalogue,
    ExecStatus,
    Opened,
    SandboxService,
    ServiceHealth,
    SessionPage,
    ThreadRun,
)
from sandlot.domain.session import CreateSession, Session, SessionChange
from sandlot.domain.workspaces.snapshots import (
    Difference,
    Restored,
    RestoreSnapshot,
    Snapshot,
    SnapshotPage,
    TakeSnapshot,
)
from sandlot.domain.workspaces.workspace import WorkspaceStatus


def scoped(service: SandboxService, principal: Principal) -> SandboxService:
    """The service itself if the caller may do everything with it, which most callers may."""
    return service if principal.scopes >= USER_SCOPES else ScopedService(service, principal)


class ScopedService(ScopedArtifacts, ScopedVolumes, ScopedContexts):
    def __init__(self, service: SandboxService, principal: Principal) -> None:
        self._service = service
        self._principal = principal
        self._require = principal.require

    # sessions

    async def create_session(self, request: CreateSession) -> Opened:
        self._check_create(request)
        return await self._service.create_session(request)

    def _check_create(self, request: CreateSession) -> None:
        self._require(Scope.SESSIONS_WRITE)
        if request.network is not None:
            self._require(Scope.NETWORK)
        if request.volumes:
            self._require(Scope.FILES)

    async def get_session(self, session_id: str) -> Session:
        self._require(Scope.SESSIONS_READ)
        return await self._service.get_session(session_id)

    async def list_sessions(
        self, *, thread: str | None = None, after: str | None = None, limit: int = 100
    ) -> SessionPage:
        self._require(Scope.SESSIONS_READ)
        return await self._service.list_sessions(thread=thread, after=after, limit=limit)

    async def update_session(self, session_id: str, change: SessionChange) -> Session:
        self._require(Scope.SESSIONS_WRITE)
        return await self._service.update_session(session_id, change)

    async def recreate_session(self, session_id: str) -> Session:
        self._require(Scope.SESSIONS_WRITE)
        return await self._service.recreate_session(session_id)

    async def delete_session(self, session_id: str) -> None:
        self._require(Scope.SESSIONS_WRITE)
        await self._service.delete_session(session_id)

    # execs

    async def execute(self, session_id: str, request: ExecRequest, stdin: bytes | None = None) -> ExecResult:
        self._require(Scope.EXEC)
        return await self._service.execute(session_id, request, stdin)

    async def execute_in_thread(
        self, create: CreateSession, request: ExecRequest, stdin: bytes | None = None
    ) -> ThreadRun:
        self._check_create(create)
        self._require(Scope.EXEC)
        return await self._service.execute_in_thread(create, request, stdin)

    async def start_exec(self, session_id: str, request: ExecRequest, *, offset: int = 0) -> Execution:
        self._require(Scope.EXEC)
        return await self._service.start_exec(session_id, request, offset=offset)

    async def attach_exec(self, session_id: str, exec_id: str, *, offset: int = 0) -> Execution:
        self._require(Scope.EXEC)
        return await self._service.attach_exec(session_id, exec_id, offset=offset)

    async def get_exec(self, session_id: str, exec_id: str, *, wait_s: float = 0) -> ExecStatus:
        self._require(Scope.EXEC)
        return await self._service.get_exec(session_id, exec_id, wait_s=wait_s)

    async def list_execs(self, session_id: str) -> Sequence[ExecSummary]:
        self._require(Scope.EXEC)
        return await self._service.list_execs(session_id)

    async def signal_exec(self, session_id: str, exec_id: str, signal: int) -> int:
        self._require(Scope.EXEC)
        return await self._service.signal_exec(session_id, exec_id, signal)

    async def kill_exec(self, session_id: str, exec_id: str) -> int:
        self._require(Scope.EXEC)
        return await self._service.kill_exec(session_id, exec_id)

    async def resize_exec(self, session_id: str, exec_id: str, *, rows: int, cols: int) -> None:
        self._require(Scope.EXEC)
        await self._service.resize_exec(session_id, exec_id, rows=rows, cols=cols)

    # shells and files

    async def list_shells(self, session_id: str) -> Sequence[ShellSummary]:
        self._require(Scope.EXEC)
        return await self._service.list_shells(session_id)

    async def close_shell(self, session_id: str, name: str) -> None:
        self._require(Scope.EXEC)
        await self._service.close_shell(session_id, name)

    def files(self, session_id: str) -> Files:
        self._require(Scope.FILES)
        return self._service.files(session_id)

    # workspaces

    async def get_workspace(self, session_id: str) -> WorkspaceStatus:
        self._require(Scope.SESSIONS_READ)
        return await self._service.get_workspace(session_id)

    async def hibernate_session(self, session_id: str) -> Session:
        self._require(Scope.SESSIONS_WRITE)
        return await self._service.hibernate_session(session_id)

    async def take_snapshot(self, session_id: str, request: TakeSnapshot) -> Snapshot:
        self._require(Scope.SESSIONS_WRITE)
        return await self._service.take_snapshot(session_id, request)

    async def list_snapshots(
        self, *, session_id: str | None = None, after: str | None = None, limit: int = 100
    ) -> SnapshotPage:
        self._require(Scope.SESSIONS_READ)
        return await self._service.list_snapshots(session_id=session_id, after=after, limit=limit)

    async def delete_snapshot(self, snapshot_id: str) -> None:
        self._require(Scope.SESSIONS_WRITE)
        await self._service.delete_snapshot(snapshot_id)

    async def compare_snapshot(self, snapshot_id: str, *, to: str | None = None) -> Difference:
        self._require(Scope.FILES)
        return await self._service.compare_snapshot(snapshot_id, to=to)

    async def restore_snapshot(self, session_id: str, request: RestoreSnapshot) -> Restored:
        self._require(Scope.SESSIONS_WRITE)
        return await self._service.restore_snapshot(session_id, request)

    async def get_usage(self, session_id: str) -> SandboxUsage:
        self._require(Scope.SESSIONS_READ)
        return await self._service.get_usage(session_id)

    # network

    async def get_network(self, session_id: str) -> NetworkStatus:
        self._require(Scope.SESSIONS_READ)
        return await self._service.get_network(session_id)

    async def change_network(self, session_id: str, change: NetworkChange) -> NetworkStatus:
        self._require(Scope.NETWORK)
        return await self._service.change_network(session_id, change)

    # ports

    async def connect(self, session_id: str, port: int, *, through: str = "") -> ByteStream:
        self._require(Scope.NETWORK)
        return await self._service.connect(session_id, port, through=through)

    async def expose_port(self, session_id: str, request: ExposePort) -> Preview:
        self._require(Scope.NETWORK)
        return await self._service.expose_port(session_id, request)

    async def unexpose_port(self, session_id: str, port: int) -> None:
        self._require(Scope.NETWORK)
        await self._service.unexpose_port(session_id, port)

    async def list_exposed(self, session_id: str) -> Sequence[Exposure]:
        self._require(Scope.SESSIONS_READ)
        return await self._service.list_exposed(session_id)

    # history

    async def list_events(self, query: EventQuery) -> EventPage:
        """Commands and paths are left out for callers that could not list execs or files either."""
        self._require(Scope.SESSIONS_READ)
        page = await self._service.list_events(query)
        return replace(page, events=tuple(event.visible_to(self._principal) for event in page.events))

    def read_recording(self, session_id: str) -> AsyncIterator[bytes]:
        """It shows commands and what they wrote, which a caller without ``exec`` could not see either."""
        self._require(Scope.SESSIONS_READ)
        self._require(Scope.EXEC)
        return self._service.read_recording(session_id)

    # the service itself

    async def catalogue(self) -> Catalogue:
        self._require(Scope.SESSIONS_READ)
        return (await self._service.catalogue()).visible_to(self._principal)

    async def health(self) -> ServiceHealth:
        """Needs no scope: it shows a caller without ``metrics:read`` nothing of other callers."""
        return await self._service.health()

    async def close(self) -> None:
        await self._service.close()
