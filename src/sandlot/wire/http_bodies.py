"""The JSON bodies of the HTTP API, and their way to and from the domain: here those of sessions and files, in
``exec_bodies`` those of execs.

Plain dataclasses: the server validates requests with them, the client decodes answers with them, and neither
needs the other's libraries. Values of the domain that are JSON already (file entries, limits, pools) cross as
they are.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Literal

from sandlot.domain.limits import LimitChange, Limits
from sandlot.domain.service import Access, SessionPage
from sandlot.domain.session import (
    NEVER,
    CreateSession,
    EndReason,
    IfDifferent,
    LossReport,
    Never,
    Predecessor,
    Session,
    SessionChange,
    SessionState,
    Timeout,
)

TimeoutBody = float | Literal["never"] | None
# Read by the server's validator: a field that is not ours is an error, not ignored.
STRICT: dict[str, Any] = {"extra": "forbid"}


def _timeout(body: TimeoutBody) -> Timeout | None:
    return NEVER if body == "never" else body


def _timeout_body(timeout: Timeout | None) -> TimeoutBody:
    return "never" if isinstance(timeout, Never) else timeout


def sent(body: Any, *added: str) -> dict[str, Any]:
    """A body's members as a client sends them. What was ``added`` in a later version is left out while it has
    its default: an older server refuses its very name.
    """
    members = ((each, getattr(body, each.name)) for each in fields(body))
    return {each.name: value for each, value in members if each.name not in added or value != each.default}


# A fleet's worker says in it who it is.
WORKER_HEADER = "Sandlot-Worker"


# --- sessions ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CreateSessionBody:
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
        )

    @classmethod
    def of(cls, request: CreateSession) -> CreateSessionBody:
        """Without the idempotency key, which goes as a header."""
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
        )

    def sent(self) -> dict[str, Any]:
        return sent(self, "if_different")


@dataclass(frozen=True, slots=True)
class SessionChangeBody:
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
    """``expires_at`` is derived; in answers a timeout of null never comes.

    ``access`` is of the answer and not of the session: where the sandbox is, for calls that go straight
    there. Null where there is one server, and in lists.
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
        )


@dataclass(frozen=True, slots=True)
class SessionPageBody:
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
    __pydantic_config__: ClassVar[Any] = STRICT

    path: str
    parents: bool = True
    mode: int = 0o755


@dataclass(frozen=True, slots=True)
class MoveBody:
    __pydantic_config__: ClassVar[Any] = STRICT

    source: str
    destination: str
    overwrite: bool = False


@dataclass(frozen=True, slots=True)
class RemovedBody:
    removed: int
