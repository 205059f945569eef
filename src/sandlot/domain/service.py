"""``SandboxService``: the contract that everything above a sandbox is written on.

The worker implements it on real sandboxes, the HTTP client by calling a server, the fake in memory, and a
coordinator by finding the right worker. ``sandlot.testing.service_suite`` proves that they behave the same.

A failed command is a result. Everything else that goes wrong is an error of ``sandlot.domain.errors``:
``NotFound`` and ``SessionEnded`` for sessions, ``SandboxLost`` (with the loss report in its ``details``) once
a session's sandbox is gone, ``Busy`` at the cap of concurrent execs, ``Unavailable`` when no sandbox is to be
had.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from sandlot.domain.computer import ExecSummary, Execution, Files, ShellSummary
from sandlot.domain.environment import Recipe, Tier
from sandlot.domain.execution import ExecRequest, ExecResult
from sandlot.domain.limits import Limits
from sandlot.domain.pool import PoolStats
from sandlot.domain.session import CreateSession, Session, SessionChange


@dataclass(frozen=True, slots=True)
class Opened:
    """``created`` is false where a thread or an idempotency key had its session already."""

    session: Session
    created: bool


@dataclass(frozen=True, slots=True)
class SessionPage:
    """``next`` is what to give as ``after`` for the following page; None at the end."""

    sessions: tuple[Session, ...]
    next: str | None


@dataclass(frozen=True, slots=True)
class ExecStatus:
    """``result`` once it has ended; until then the output so far can be had by attaching."""

    exec_id: str
    running: bool
    result: ExecResult | None = None


@dataclass(frozen=True, slots=True)
class ThreadRun:
    opened: Opened
    result: ExecResult


@dataclass(frozen=True, slots=True)
class Access:
    """The way of one session's client straight to the worker that has the sandbox. ``token`` opens that
    session there and nothing else, until ``expires_at`` by the clock of who gave it. ``worker``: who must
    answer there; on another network the same address may be somebody else's.
    """

    url: str
    token: str = field(repr=False)
    expires_at: float
    worker: str


@dataclass(frozen=True, slots=True)
class EnvironmentInfo:
    """An environment as users see it. Timeouts: None is never. ``ceilings``: the most that a session may ask
    for instead of ``limits``; None from a server that does not say.
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
        )


@dataclass(frozen=True, slots=True)
class RegistryEntry:
    """A tool, a prompt or an agent out of the registry: declared, not interpreted here."""

    kind: str
    name: str
    description: str
    spec: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Catalogue:
    environments: tuple[EnvironmentInfo, ...]
    tools: tuple[RegistryEntry, ...] = ()
    prompts: tuple[RegistryEntry, ...] = ()
    agents: tuple[RegistryEntry, ...] = ()


@dataclass(frozen=True, slots=True)
class ServiceHealth:
    """``ready``: whether what it has can be used. ``creates``: whether new sessions are taken now as well.
    ``problems`` says why not, or what to look at.
    """

    ready: bool
    worker_id: str
    version: str
    active_sessions: int
    calls_under_way: int
    pools: Mapping[str, PoolStats]
    problems: tuple[str, ...] = ()
    # Of a fleet: how many are alive.
    workers: int | None = None
    creates: bool = True


class SandboxService(Protocol):
    # sessions

    async def create_session(self, request: CreateSession) -> Opened: ...

    async def get_session(self, session_id: str) -> Session:
        """Also of a lost session. ``SessionEnded`` for one that ended, as long as it is remembered."""
        ...

    async def list_sessions(
        self, *, thread: str | None = None, after: str | None = None, limit: int = 100
    ) -> SessionPage:
        """Live and lost ones, oldest first."""
        ...

    async def update_session(self, session_id: str, change: SessionChange) -> Session: ...

    async def recreate_session(self, session_id: str) -> Session:
        """A new sandbox for a session that lost its own; ``Conflict`` while it has one."""
        ...

    async def delete_session(self, session_id: str) -> None:
        """When it returns, no process of the session is left. Idempotent; ``NotFound`` if it never was."""
        ...

    # execs

    async def execute(self, session_id: str, request: ExecRequest, stdin: bytes | None = None) -> ExecResult:
        """Runs to the end. The same exec id again gives the one result; it never runs twice."""
        ...

    async def execute_in_thread(
        self, create: CreateSession, request: ExecRequest, stdin: bytes | None = None
    ) -> ThreadRun:
        """``create_session`` (``create.thread`` is set) and ``execute`` in one call."""
        ...

    async def start_exec(self, session_id: str, request: ExecRequest, *, offset: int = 0) -> Execution: ...

    async def attach_exec(self, session_id: str, exec_id: str, *, offset: int = 0) -> Execution: ...

    async def get_exec(self, session_id: str, exec_id: str, *, wait_s: float = 0) -> ExecStatus:
        """Waits up to ``wait_s`` seconds for its end."""
        ...

    async def list_execs(self, session_id: str) -> Sequence[ExecSummary]: ...

    async def signal_exec(self, session_id: str, exec_id: str, signal: int) -> int:
        """To every process of the exec; returns how many."""
        ...

    async def kill_exec(self, session_id: str, exec_id: str) -> int: ...

    async def resize_exec(self, session_id: str, exec_id: str, *, rows: int, cols: int) -> None: ...

    # shells and files

    async def list_shells(self, session_id: str) -> Sequence[ShellSummary]: ...

    async def close_shell(self, session_id: str, name: str) -> None: ...

    def files(self, session_id: str) -> Files: ...

    # the service itself

    async def catalogue(self) -> Catalogue: ...

    async def health(self) -> ServiceHealth: ...

    async def close(self) -> None: ...
