"""The provider contract: what makes sandboxes, and what a sandbox can do.

Implementations live beside this file; ``sandlot.testing`` holds the suite that each must pass.
A failed command is a result; a failed sandbox is an exception of ``sandlot.domain.errors``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from sandlot.domain.computer import ExecSummary, Execution, Files, ShellSummary
from sandlot.domain.environment import Environment, Tier
from sandlot.domain.execution import ExecRequest, ExecResult
from sandlot.domain.limits import Limits


class ByteStream(Protocol):
    """A connection to a port, seen from the host."""

    async def receive(self) -> bytes:
        """Empty bytes at the end."""
        ...

    async def send(self, data: bytes) -> None: ...

    async def send_end(self) -> None: ...

    async def close(self) -> None: ...


class PortListener(Protocol):
    @property
    def address(self) -> str: ...

    def connections(self) -> AsyncIterator[ByteStream]: ...

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Health:
    """What the agent itself answers."""

    agent: str
    uptime_ms: int
    execs_running: int
    processes: int
    memory_used_bytes: int
    memory_limit_bytes: int
    oom_kills: int


@dataclass(frozen=True, slots=True)
class Stats:
    """What the engine measures from outside."""

    memory_bytes: int
    cpu_ns: int
    pids: int


class Sandbox(Protocol):
    @property
    def id(self) -> str: ...

    @property
    def tier(self) -> Tier: ...

    @property
    def files(self) -> Files: ...

    @property
    def lost(self) -> bool:
        """Whether it is known to be lost, without waiting."""
        ...

    async def bind(self, *, env: Mapping[str, str], max_execs: int | None = None) -> None:
        """Environment of every later exec and shell: a warm sandbox fits any request."""
        ...

    async def start(self, request: ExecRequest, *, offset: int = 0) -> Execution:
        """Starts the exec, or attaches to it if its id is known; never runs one id twice."""
        ...

    async def attach(self, exec_id: str, *, offset: int = 0) -> Execution: ...

    async def run(self, request: ExecRequest, stdin: bytes | None = None) -> ExecResult:
        """Start and read to the end, across a broken link if need be."""
        ...

    async def signal(self, exec_id: str, signal: int) -> int:
        """To every process of the exec, however it daemonised; returns how many."""
        ...

    async def kill(self, exec_id: str) -> int: ...

    async def resize(self, exec_id: str, *, rows: int, cols: int) -> None: ...

    async def list_execs(self) -> Sequence[ExecSummary]: ...

    async def forget(self, exec_id: str) -> None: ...

    async def list_shells(self) -> Sequence[ShellSummary]: ...

    async def close_shell(self, name: str) -> None: ...

    async def connect(self, address: str, *, network: str = "tcp") -> ByteStream: ...

    async def listen(self, address: str) -> PortListener: ...

    async def health(self) -> Health: ...

    async def wait_lost(self) -> str:
        """Returns when the sandbox is lost for good, with the reason."""
        ...


@dataclass(frozen=True, slots=True)
class SandboxSpec:
    """What a provider needs to make one sandbox. ``labels`` are the caller's own, for finding it again."""

    id: str
    environment: Environment
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FoundSandbox:
    """A sandbox as the engine knows it, in whatever state."""

    id: str
    state: str
    environment: str
    tier: Tier
    spec_hash: str
    created_at: float
    labels: Mapping[str, str] = field(default_factory=dict)


class Provider(Protocol):
    async def open(self) -> None:
        """Begins this life; other calls imply it. ``Conflict`` if another one holds the same data."""
        ...

    async def prepare(self, environment: Environment) -> None:
        """Everything that is done once per environment: checks the tier, prepares the image."""
        ...

    async def create(self, spec: SandboxSpec) -> Sandbox:
        """Returns when the agent inside has answered."""
        ...

    async def adopt(self, sandbox_id: str) -> Sandbox:
        """Takes over a sandbox that runs already, as after a restart."""
        ...

    async def destroy(self, sandbox_id: str) -> None:
        """Removes it and its storage; succeeds if it is gone already."""
        ...

    async def list(self) -> Sequence[FoundSandbox]:
        """Ours, in every state."""
        ...

    def can_update(self, environment: Environment, limits: Limits) -> bool:
        """Whether ``update_limits`` can bring a sandbox of this environment to these limits."""
        ...

    async def update_limits(self, sandbox_id: str, limits: Limits) -> None: ...

    async def pause(self, sandbox_id: str) -> None: ...

    async def unpause(self, sandbox_id: str) -> None: ...

    async def stats(self, sandbox_id: str) -> Stats: ...

    async def warnings(self) -> Sequence[str]:
        """What an operator should know about the engine; empty if all is well."""
        ...

    async def close(self) -> None:
        """Lets go of everything; sandboxes stay."""
        ...
