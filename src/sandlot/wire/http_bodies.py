"""JSON bodies of the HTTP API for sessions and files, and their conversion to and from the domain.

``exec_bodies`` has those of execs. All are plain dataclasses: the server validates requests with
them, the client decodes responses with them, and neither needs the other's libraries. Domain values
that are JSON already (file entries, limits, pools) cross the wire unchanged.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Literal

from sandlot.domain.capacity.limits import LimitChange, Limits
from sandlot.domain.environment import ProviderName, provider_named
from sandlot.domain.network.policy import EgressPolicy
from sandlot.domain.network.status import parse_network
from sandlot.domain.service import Access, SessionPage
from sandlot.domain.session import (
    DEFAULT_HIBERNATION_S,
    NEVER,
    CreateSession,
    EndReason,
    IfDifferent,
    LossReport,
    Never,
    OnIdle,
    Predecessor,
    Session,
    SessionChange,
    SessionState,
    Timeout,
)
from sandlot.domain.volumes.volume import SessionVolume, VolumeMode, VolumeUse
from sandlot.domain.workspaces.workspace import Workspace

TimeoutBody = float | Literal["never"] | None
# ``none``, ``public``, a list of what to allow, or a mapping with ``allow``, ``deny`` and ``caps``.
PolicyBody = str | list[str] | dict[str, Any]
# For the server's validator: an unknown field is an error and is not ignored.
STRICT: dict[str, Any] = {"extra": "forbid"}


def _timeout(body: TimeoutBody) -> Timeout | None:
    return NEVER if body == "never" else body


def _timeout_body(timeout: Timeout | None) -> TimeoutBody:
    return "never" if isinstance(timeout, Never) else timeout


def policy_of(body: PolicyBody | None) -> EgressPolicy | None:
    return None if body is None else parse_network(body)


def policy_body(policy: EgressPolicy | None) -> PolicyBody | None:
    return None if policy is None else policy.to_document()


def wire_fields(body: Any, *later_fields: str) -> dict[str, Any]:
    """A body's fields as a client sends them.

    ``later_fields`` were added in a later version. They are omitted while they have their default,
    because an older server refuses their names.
    """
    values = ((item, getattr(body, item.name)) for item in fields(body))
    return {
        item.name: value for item, value in values if item.name not in later_fields or value != item.default
    }


# The header in which a fleet's worker sends its id.
WORKER_HEADER = "Sandlot-Worker"


# --- sessions ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CreateSessionBody:
    """A session to create. Defaults come from the environment.

    environment: the environment's name; null for the default one.
    thread: the conversation that the session belongs to. If it has a session, that one is returned.
    env: variables for every command of the session.
    limits: what to change of the environment's limits.
    idle_timeout_s: seconds without use after which the session ends; ``"never"`` if the server allows it.
    lifetime_s: seconds from its creation after which the session ends; ``"never"`` if the server allows it.
    metadata: your own names and values; they are returned with the session.
    recreate_lost: if the thread's sandbox is lost, replace it at once.
    if_different: what to do if the thread has a session with another environment, other variables or other
        limits: ``"error"`` answers ``thread_differs``, ``"keep"`` uses it as it is.
    record: record what commands write, for replay.
    network: what the sandbox may connect to, in place of what the environment allows: ``"none"``,
        ``"public"``, a list of hosts and presets, or an object with ``allow``, ``deny`` and ``caps``. Needs
        the scope ``network``.
    snapshot: the id of the snapshot whose files a new session begins with.
    on_idle: whether the session ends or hibernates at its idle timeout or the end of its lifetime: ``"end"``,
        ``"hibernate"``, or null for what the server is set up for.
    artifacts: files in ``/workspace`` to keep when the session ends or hibernates, as paths or patterns.
    volumes: the volumes that the session gets at ``/volumes/<name>``. By name or id: ``"rw"`` to write, which
        one session at a time may, or ``"ro"`` to read a copy of the files as they are now. Needs the scope
        ``files``.
    provider: what makes the sandbox, ``"docker"`` or ``"e2b"``. The environment must be one of its; without
        one, it is the default or the first one of the provider.
    """

    __pydantic_config__: ClassVar[Any] = STRICT

    environment: str | None = None
    thread: str | None = None
    env: dict[str, str] = field(default_factory=dict)
    limits: LimitChange = field(default_factory=LimitChange)
    idle_timeout_s: TimeoutBody = None
    lifetime_s: TimeoutBody = None
    metadata: dict[str, str] = field(default_factory=dict)
    recreate_lost: bool = False
    if_different: IfDifferent = "error"
    record: bool = False
    network: PolicyBody | None = None
    snapshot: str | None = None
    on_idle: OnIdle | None = None
    artifacts: tuple[str, ...] = ()
    volumes: dict[str, VolumeMode] | None = None
    provider: ProviderName | None = None

    def to_domain(self, *, thread: str | None = None, idempotency_key: str | None = None) -> CreateSession:
        return CreateSession(
            environment=self.environment,
            thread=self.thread if thread is None else thread,
            env=self.env,
            limits=self.limits,
            idle_timeout_s=_timeout(self.idle_timeout_s),
            lifetime_s=_timeout(self.lifetime_s),
            metadata=self.metadata,
            idempotency_key=idempotency_key,
            recreate_lost=self.recreate_lost,
            if_different=self.if_different,
            record=self.record,
            network=policy_of(self.network),
            snapshot=self.snapshot,
            on_idle=self.on_idle,
            artifacts=self.artifacts,
            volumes=tuple(VolumeUse(name, mode) for name, mode in (self.volumes or {}).items()),
            provider=self.provider,
        )

    @classmethod
    def of(cls, request: CreateSession) -> CreateSessionBody:
        """The body without the idempotency key, which goes in a header."""
        return cls(
            environment=request.environment,
            thread=request.thread,
            env=dict(request.env),
            limits=request.limits,
            idle_timeout_s=_timeout_body(request.idle_timeout_s),
            lifetime_s=_timeout_body(request.lifetime_s),
            metadata=dict(request.metadata),
            recreate_lost=request.recreate_lost,
            if_different=request.if_different,
            record=request.record,
            network=policy_body(request.network),
            snapshot=request.snapshot,
            on_idle=request.on_idle,
            artifacts=tuple(request.artifacts),
            volumes={use.volume: use.mode for use in request.volumes} or None,
            provider=None if request.provider is None else provider_named(request.provider),
        )

    def to_wire(self) -> dict[str, Any]:
        return wire_fields(
            self,
            "if_different",
            "record",
            "network",
            "snapshot",
            "on_idle",
            "artifacts",
            "volumes",
            "provider",
        )


@dataclass(frozen=True, slots=True)
class SessionChangeBody:
    """What to change of a session; null leaves a value as it is.

    idle_timeout_s: seconds without use after which the session ends; ``"never"`` if the server allows it.
    lifetime_s: seconds from its creation after which the session ends; ``"never"`` if the server allows it.
    metadata: your own names and values; they replace the old ones.
    """

    __pydantic_config__: ClassVar[Any] = STRICT

    idle_timeout_s: TimeoutBody = None
    lifetime_s: TimeoutBody = None
    metadata: dict[str, str] | None = None

    def to_domain(self) -> SessionChange:
        return SessionChange(_timeout(self.idle_timeout_s), _timeout(self.lifetime_s), self.metadata)

    @classmethod
    def of(cls, change: SessionChange) -> SessionChangeBody:
        return cls(
            _timeout_body(change.idle_timeout_s),
            _timeout_body(change.lifetime_s),
            None if change.metadata is None else dict(change.metadata),
        )


@dataclass(frozen=True, slots=True)
class SessionBody:
    """A session. Times are seconds since the epoch.

    id: the session's id.
    environment: the name of the environment that its sandbox was made from.
    state: where it is in its life.
    generation: 1 for the first sandbox; one more each time the session gets a new one.
    created_at: when it was created.
    last_active_at: when it was last used.
    expires_at: when it ends or hibernates if nobody uses it until then; null: never.
    limits: what its sandbox may use.
    thread: the conversation that it belongs to, if any.
    sandbox_id: the id of its sandbox, while it has one.
    idle_timeout_s: seconds without use after which it ends or hibernates; null: never.
    lifetime_s: seconds from its creation, or from the last time that it woke from hibernation, after which it
        ends or hibernates; null: never.
    metadata: your own names and values.
    loss: the loss report, if it lost a sandbox.
    predecessor: the session that its thread had before, if any.
    end_reason: why it ended, if it has.
    ended_at: when it ended.
    tenant: whom it belongs to.
    created_by: the id of the key that it was created with; empty for the server's own key.
    record: whether what its commands write is recorded.
    network: the network policy that it asked for; null: its environment's.
    workspace: its files in ``/workspace``; null once it has ended.
    on_idle: whether it ends or hibernates at its idle timeout or the end of its lifetime.
    hibernation_s: seconds without use after which it ends while it hibernates.
    woken_at: when it last got a sandbox after hibernation.
    artifacts: the files that are kept as artifacts when it ends or hibernates.
    volumes: the volumes that it has at ``/volumes/<name>``, and whether it writes to them.
    access: in a fleet, how to reach the session's worker directly; null in lists and from a single server.
    """

    id: str
    environment: str
    state: SessionState
    generation: int
    created_at: float
    last_active_at: float
    expires_at: float | None
    limits: Limits
    thread: str | None = None
    sandbox_id: str | None = None
    idle_timeout_s: float | None = None
    lifetime_s: float | None = None
    metadata: dict[str, str] = field(default_factory=dict)
    loss: LossReport | None = None
    predecessor: Predecessor | None = None
    end_reason: EndReason | None = None
    ended_at: float | None = None
    tenant: str = "default"
    created_by: str = ""
    record: bool = False
    network: EgressPolicy | None = None
    workspace: Workspace | None = None
    on_idle: OnIdle = OnIdle.END
    hibernation_s: float = DEFAULT_HIBERNATION_S
    woken_at: float | None = None
    artifacts: tuple[str, ...] = ()
    volumes: tuple[SessionVolume, ...] = ()
    access: Access | None = None

    @classmethod
    def of(cls, session: Session, access: Access | None = None) -> SessionBody:
        return cls(
            id=session.id,
            environment=session.environment,
            state=session.state,
            generation=session.generation,
            created_at=session.created_at,
            last_active_at=session.last_active_at,
            expires_at=session.expires_at,
            limits=session.limits,
            thread=session.thread,
            sandbox_id=session.sandbox_id,
            idle_timeout_s=session.idle_timeout_s,
            lifetime_s=session.lifetime_s,
            metadata=dict(session.metadata),
            loss=session.loss,
            predecessor=session.predecessor,
            end_reason=session.end_reason,
            ended_at=session.ended_at,
            tenant=session.tenant,
            created_by=session.created_by,
            record=session.record,
            network=session.network,
            workspace=session.workspace,
            on_idle=session.on_idle,
            hibernation_s=session.hibernation_s,
            woken_at=session.woken_at,
            artifacts=session.artifacts,
            volumes=session.volumes,
            access=access,
        )

    def to_domain(self) -> Session:
        return Session(
            id=self.id,
            environment=self.environment,
            created_at=self.created_at,
            last_active_at=self.last_active_at,
            tenant=self.tenant,
            thread=self.thread,
            state=self.state,
            generation=self.generation,
            sandbox_id=self.sandbox_id,
            idle_timeout_s=self.idle_timeout_s,
            lifetime_s=self.lifetime_s,
            limits=self.limits,
            metadata=self.metadata,
            loss=self.loss,
            predecessor=self.predecessor,
            end_reason=self.end_reason,
            ended_at=self.ended_at,
            created_by=self.created_by,
            record=self.record,
            network=self.network,
            workspace=self.workspace,
            on_idle=self.on_idle,
            artifacts=self.artifacts,
            volumes=self.volumes,
            hibernation_s=self.hibernation_s,
            woken_at=self.woken_at,
        )


@dataclass(frozen=True, slots=True)
class SessionPageBody:
    """One page of sessions.

    sessions: the sessions, oldest first.
    next: what to pass as ``after`` for the next page; null at the end.
    """

    sessions: list[SessionBody]
    next: str | None = None

    @classmethod
    def of(cls, page: SessionPage) -> SessionPageBody:
        return cls([SessionBody.of(session) for session in page.sessions], page.next)

    def to_domain(self) -> SessionPage:
        return SessionPage(tuple(session.to_domain() for session in self.sessions), self.next)


# --- files ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MkdirBody:
    """A folder to create.

    path: absolute, or relative to ``/workspace``.
    parents: create missing folders above it.
    mode: its permissions as a decimal number: 493 is 0755.
    """

    __pydantic_config__: ClassVar[Any] = STRICT

    path: str
    parents: bool = True
    mode: int = 0o755


@dataclass(frozen=True, slots=True)
class MoveBody:
    """A file or folder to move.

    source: its path.
    destination: its new path.
    overwrite: replace what is there.
    """

    __pydantic_config__: ClassVar[Any] = STRICT

    source: str
    destination: str
    overwrite: bool = False


@dataclass(frozen=True, slots=True)
class RemovedBody:
    """What was removed.

    removed: how many files and folders.
    """

    removed: int
