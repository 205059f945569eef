"""``SandboxService``: the contract that the API, the SDK and the command line are built on.

The worker implements it on real sandboxes, the HTTP client by calling a server, the fake in memory,
and a coordinator by finding the right worker. ``sandlot.testing.service_suite`` proves that all of
them behave the same.

A service acts for one caller, its principal, and sees only what belongs to the principal's tenant. What has
many callers is a ``SandboxHost``, which gives a service for each: a worker, a coordinator and the fake.

A failed command is a result. Every other failure is an error of ``sandlot.domain.errors``:
``NotFound`` and ``SessionEnded`` for sessions, ``SandboxLost`` (with the loss report in its
``details``) once a session's sandbox is gone, ``Busy`` at the limit of concurrent execs,
``Unavailable`` when no sandbox is available.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from sandlot.domain.artifacts.artifact import ArtifactService
from sandlot.domain.callers.limits import Use
from sandlot.domain.callers.principal import Principal, Scope
from sandlot.domain.capacity.limits import Limits
from sandlot.domain.capacity.machine import MachineUse
from sandlot.domain.capacity.pool import PoolStats
from sandlot.domain.capacity.readiness import Readiness
from sandlot.domain.capacity.usage import SandboxUsage
from sandlot.domain.code.contexts import ContextService, Language
from sandlot.domain.computer import ByteStream, ExecSummary, Execution, Files, ShellSummary
from sandlot.domain.environment import ProviderName, Recipe, Tier
from sandlot.domain.execution import ExecRequest, ExecResult
from sandlot.domain.history.query import EventPage, EventQuery, HistoryFigures
from sandlot.domain.network.policy import EgressPolicy
from sandlot.domain.network.ports import ExposePort, Exposure, Preview
from sandlot.domain.network.status import NetworkChange, NetworkStatus
from sandlot.domain.recordings.reports import RecordingFigures
from sandlot.domain.session import CreateSession, Session, SessionChange
from sandlot.domain.volumes.volume import VolumeService
from sandlot.domain.workspaces.snapshots import SnapshotService


@dataclass(frozen=True, slots=True)
class Opened:
    """``created`` is false if the thread or the idempotency key already had a session."""

    session: Session
    created: bool


@dataclass(frozen=True, slots=True)
class SessionPage:
    """``next`` is what to give as ``after`` for the following page; None at the end."""

    sessions: tuple[Session, ...]
    next: str | None


@dataclass(frozen=True, slots=True)
class ExecStatus:
    """Whether an exec runs, and its result.

    exec_id: its id.
    running: whether it runs.
    result: its result, once it has ended.
    """

    exec_id: str
    running: bool
    result: ExecResult | None = None


@dataclass(frozen=True, slots=True)
class ThreadRun:
    opened: Opened
    result: ExecResult


@dataclass(frozen=True, slots=True)
class Access:
    """Direct access to the worker that has a session's sandbox.

    url: the worker's address.
    token: opens this session there, and nothing else.
    expires_at: when the token ends, in seconds since the epoch, by the clock of the server that issued it.
    worker: the worker's id. Check it in the answers: on another network the address may be someone else's.
    """

    url: str
    token: str = field(repr=False)
    expires_at: float
    worker: str


@dataclass(frozen=True, slots=True)
class EnvironmentInfo:
    """An environment that the server offers.

    name: its name.
    image: the image that sandboxes are made from.
    tier: how strongly they are isolated.
    description: what it is for.
    languages: the languages that it has.
    limits: what a sandbox may use.
    idle_timeout_s: seconds without use after which a session ends; ``None``: never.
    lifetime_s: seconds after which a session ends; ``None``: never.
    ceilings: the most that a session may ask for instead of ``limits``; ``None`` from an older server.
    policy: the name of the policy that commands must pass; ``None`` if there is none.
    record: whether all its sessions are recorded.
    network: what its sandboxes may connect to, unless a session asks for something else.
    contexts: the languages whose kernels are warm in it. If there are any, code contexts work in it.
    provider: what makes its sandboxes.
    readiness: how far each server is with it; empty for a caller without ``metrics:read``, and from an older
        server.
    """

    name: str
    image: str
    tier: Tier
    description: str
    languages: tuple[str, ...]
    limits: Limits
    idle_timeout_s: float | None
    lifetime_s: float | None
    ceilings: Limits | None = None
    policy: str | None = None
    record: bool = False
    network: EgressPolicy = field(default_factory=EgressPolicy)
    contexts: tuple[Language, ...] = ()
    provider: ProviderName = ProviderName.DOCKER
    readiness: tuple[Readiness, ...] = ()

    @classmethod
    def of(cls, recipe: Recipe) -> EnvironmentInfo:
        return cls(
            name=recipe.environment.name,
            image=recipe.environment.image,
            tier=recipe.environment.tier,
            description=recipe.description,
            languages=recipe.languages,
            limits=recipe.environment.limits,
            idle_timeout_s=recipe.idle_timeout_s,
            lifetime_s=recipe.lifetime_s,
            ceilings=recipe.ceilings,
            policy=None if recipe.policy is None else recipe.policy.name,
            record=recipe.record,
            network=recipe.network,
            contexts=recipe.contexts,
            provider=recipe.environment.provider,
        )


@dataclass(frozen=True, slots=True)
class RegistryEntry:
    """A tool, a prompt or an agent in the registry. Sandlot lists it and does not interpret it.

    kind: ``tool``, ``prompt`` or ``agent``.
    name: its name.
    description: what it is for.
    spec: what its file says.
    """

    kind: str
    name: str
    description: str
    spec: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Catalogue:
    """What a server offers.

    environments: the environments.
    tools: the tools in the registry.
    prompts: the prompts in the registry.
    agents: the agents in the registry.
    """

    environments: tuple[EnvironmentInfo, ...]
    tools: tuple[RegistryEntry, ...] = ()
    prompts: tuple[RegistryEntry, ...] = ()
    agents: tuple[RegistryEntry, ...] = ()

    def visible_to(self, principal: Principal) -> Catalogue:
        """What the caller may see of it: without ``metrics:read``, nothing of the servers."""
        if principal.may(Scope.METRICS_READ):
            return self
        return replace(self, environments=tuple(replace(each, readiness=()) for each in self.environments))


@dataclass(frozen=True, slots=True)
class ServiceHealth:
    """A server's state.

    ready: whether existing sessions can be used.
    worker_id: the server's name.
    version: its version.
    active_sessions: how many sessions it has.
    calls_under_way: how many calls it serves now.
    pools: the warm sandboxes, by environment.
    problems: what an operator should look at, in words.
    workers: how many workers of the fleet are alive; ``None`` for a single server.
    creates: whether new sessions can be created.
    history: how its history is doing; ``None`` if it keeps none, and for a coordinator.
    recordings: how its recordings are doing; ``None`` if it makes none, and for a coordinator.
    free: how many more sessions of default size fit; ``None`` for a coordinator, whose workers say it.
    machine: how much of the machine its sandboxes have; ``None`` if it does not know, and for a coordinator.
    """

    ready: bool
    worker_id: str
    version: str
    active_sessions: int
    calls_under_way: int
    pools: Mapping[str, PoolStats]
    problems: tuple[str, ...] = ()
    workers: int | None = None
    creates: bool = True
    history: HistoryFigures | None = None
    recordings: RecordingFigures | None = None
    free: int | None = None
    machine: MachineUse | None = None

    def visible_to(self, principal: Principal, own_sessions: int) -> ServiceHealth:
        """What the caller may see of it. Without ``metrics:read``, nothing that others do shows."""
        if principal.may(Scope.METRICS_READ):
            return self
        return replace(
            self,
            active_sessions=own_sessions,
            calls_under_way=0,
            pools={},
            problems=(),
            workers=None,
            history=None,
            recordings=None,
            free=None,
            machine=None,
        )


class SandboxService(SnapshotService, ArtifactService, VolumeService, ContextService, Protocol):
    # sessions; ``SnapshotService`` has their workspaces, ``ArtifactService`` the files that outlive them,
    # ``VolumeService`` those that they share, ``ContextService`` the kernels that run their code

    async def create_session(self, request: CreateSession) -> Opened: ...

    async def get_session(self, session_id: str) -> Session:
        """Works for lost sessions too.

        ``SessionEnded`` if the session ended and is still remembered.
        """
        ...

    async def list_sessions(
        self, *, thread: str | None = None, after: str | None = None, limit: int = 100
    ) -> SessionPage:
        """List active and lost sessions, oldest first."""
        ...

    async def update_session(self, session_id: str, change: SessionChange) -> Session: ...

    async def recreate_session(self, session_id: str) -> Session:
        """Give a new sandbox to a session that lost its own; ``Conflict`` if it has one."""
        ...

    async def delete_session(self, session_id: str) -> None:
        """When this returns, no process of the session is left.

        Idempotent; ``NotFound`` if unknown.
        """
        ...

    async def get_usage(self, session_id: str) -> SandboxUsage:
        """Measure what the session's sandbox uses. It is no use of the session.

        ``Unsupported`` if what makes the sandbox does not measure it.
        """
        ...

    # execs

    async def execute(self, session_id: str, request: ExecRequest, stdin: bytes | None = None) -> ExecResult:
        """Run a command to its end. Calling again with the same exec id returns the same result: an
        exec never runs twice.
        """
        ...

    async def execute_in_thread(
        self, create: CreateSession, request: ExecRequest, stdin: bytes | None = None
    ) -> ThreadRun:
        """``create_session`` (``create.thread`` is set) and ``execute`` in one call."""
        ...

    async def start_exec(self, session_id: str, request: ExecRequest, *, offset: int = 0) -> Execution: ...

    async def attach_exec(self, session_id: str, exec_id: str, *, offset: int = 0) -> Execution: ...

    async def get_exec(self, session_id: str, exec_id: str, *, wait_s: float = 0) -> ExecStatus:
        """Get an exec's status; wait up to ``wait_s`` seconds for its end."""
        ...

    async def list_execs(self, session_id: str) -> Sequence[ExecSummary]: ...

    async def signal_exec(self, session_id: str, exec_id: str, signal: int) -> int:
        """Send a signal to every process of the exec; return how many got it."""
        ...

    async def kill_exec(self, session_id: str, exec_id: str) -> int: ...

    async def resize_exec(self, session_id: str, exec_id: str, *, rows: int, cols: int) -> None: ...

    # shells and files

    async def list_shells(self, session_id: str) -> Sequence[ShellSummary]: ...

    async def close_shell(self, session_id: str, name: str) -> None: ...

    def files(self, session_id: str) -> Files: ...

    # network

    async def get_network(self, session_id: str) -> NetworkStatus:
        """Return what the session's sandbox may connect to, and what it has done so far."""
        ...

    async def change_network(self, session_id: str, change: NetworkChange) -> NetworkStatus:
        """Change what the session's sandbox may connect to. Open connections that are no longer allowed end.

        ``InvalidRequest`` if it asks for more than the operator lets sessions have; nothing changes then.
        """
        ...

    # ports

    async def connect(self, session_id: str, port: int, *, through: str = "") -> ByteStream:
        """Connect to a TCP port of the sandbox's loopback.

        Connecting counts as use of the session, and so does sending. ``through``: the id of an exposure, or
        ``PUBLIC``, for a visitor of a preview; the connection ends when the port is unexposed. ``NotFound``
        if the port is not exposed so, or if nothing listens there, which ``details["reason"]`` then says.
        ``Busy`` if the session has too many connections.
        """
        ...

    async def expose_port(self, session_id: str, request: ExposePort) -> Preview:
        """Let visitors reach a port. A port that is exposed already keeps its links."""
        ...

    async def unexpose_port(self, session_id: str, port: int) -> None:
        """End a port's previews: all links to it, and all connections through them. Idempotent."""
        ...

    async def list_exposed(self, session_id: str) -> Sequence[Exposure]: ...

    # history

    async def list_events(self, query: EventQuery) -> EventPage:
        """Return the events of the caller's tenant that match, oldest first.

        Those of a session stay after its end. What was recorded before the call is in it, and a caller that
        asks on with ``next`` gets each event once. ``Unsupported`` if the server keeps no history.
        """
        ...

    def read_recording(self, session_id: str) -> AsyncIterator[bytes]:
        """Read a session's recording, an asciicast of whole lines. It stays after the session's end.

        What was recorded before the call is in it. ``NotFound`` if there is none.
        """
        ...

    # the service itself

    async def catalogue(self) -> Catalogue: ...

    async def health(self) -> ServiceHealth: ...

    async def close(self) -> None: ...


class SandboxHost(Protocol):
    """Sandboxes of many tenants. Nothing can be done with one except by acting for somebody."""

    def acting_for(self, principal: Principal) -> SandboxService:
        """The service for this caller. It refuses what the caller's scopes do not allow."""
        ...

    async def tenant_of(self, session_id: str) -> str:
        """Whom an active or lost session belongs to, for a visitor without a key. ``NotFound`` otherwise."""
        ...

    async def health(self) -> ServiceHealth:
        """The state of the whole host, for its operator."""
        ...

    async def use(self, holder: str) -> Use:
        """What a tenant or a key uses now (``domain.callers.limits``)."""
        ...
