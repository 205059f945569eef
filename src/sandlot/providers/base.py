"""The provider contract: how sandboxes are made, and what a sandbox can do.

Implementations live beside this file; ``sandlot.testing`` holds the suite that each must pass.
A failed command is a result. A failed sandbox raises an exception from ``sandlot.domain.errors``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from sandlot.domain.capacity.limits import Limits
from sandlot.domain.computer import ByteStream as ByteStream
from sandlot.domain.computer import ExecSummary, Execution, Files, ShellSummary
from sandlot.domain.environment import Environment, Tier
from sandlot.domain.execution import ExecRequest, ExecResult, Output, Started
from sandlot.providers.workspaces import WorkspaceStore


class PortListener(Protocol):
    @property
    def address(self) -> str: ...

    def connections(self) -> AsyncIterator[ByteStream]:
        """Yields connections as they arrive, until the listener closes. Iterate only once.

        The listener outlives broken links: what connects meanwhile waits inside. Raises
        ``Conflict`` when another listener takes the address over.
        """
        ...

    async def close(self) -> None:
        """Stops listening. Connections already taken stay open; those still waiting are aborted."""
        ...


@dataclass(frozen=True, slots=True)
class Health:
    """The agent's own report about its sandbox."""

    agent: str
    uptime_ms: int
    execs_running: int
    processes: int
    memory_used_bytes: int
    memory_limit_bytes: int
    oom_kills: int


@dataclass(frozen=True, slots=True)
class Stats:
    """The engine's measurements, taken from outside the sandbox."""

    memory_bytes: int
    cpu_ns: int
    pids: int


OnStart = Callable[[Started], None]
OnOutput = Callable[[Output], None]


class Sandbox(Protocol):
    @property
    def id(self) -> str: ...

    @property
    def tier(self) -> Tier: ...

    @property
    def agent_program(self) -> str:
        """The path of the agent's program inside. Commands may run it."""
        ...

    @property
    def files(self) -> Files: ...

    @property
    def lost(self) -> bool:
        """Whether the sandbox is already known to be lost. Never waits."""
        ...

    async def bind(self, *, env: Mapping[str, str], max_execs: int | None = None) -> None:
        """Sets the environment of later execs and shells, so a warm sandbox fits any request."""
        ...

    async def start(
        self, request: ExecRequest, *, offset: int = 0, on_start: OnStart | None = None
    ) -> Execution:
        """Starts the exec, or attaches to it if its id is known. Never runs the same id twice.

        ``on_start`` is called once the exec runs, or has run, before any of its events is read.
        """
        ...

    async def attach(self, exec_id: str, *, offset: int = 0) -> Execution: ...

    async def run(
        self,
        request: ExecRequest,
        stdin: bytes | None = None,
        *,
        on_start: OnStart | None = None,
        on_output: OnOutput | None = None,
    ) -> ExecResult:
        """Starts the exec and reads it to the end, across broken links if necessary.

        ``on_output`` is called with each piece of output as it arrives.
        """
        ...

    async def signal(self, exec_id: str, signal: int) -> int:
        """Signals every process of the exec, daemons included, and returns their number."""
        ...

    async def kill(self, exec_id: str) -> int: ...

    async def resize(self, exec_id: str, *, rows: int, cols: int) -> None: ...

    async def list_execs(self) -> Sequence[ExecSummary]: ...

    async def forget(self, exec_id: str) -> None: ...

    async def list_shells(self) -> Sequence[ShellSummary]: ...

    async def close_shell(self, name: str) -> None: ...

    async def connect(self, address: str, *, network: str = "tcp") -> ByteStream: ...

    async def listen(self, address: str) -> PortListener:
        """Listens on a loopback address inside.

        If the sandbox listens there already, for example for a worker that is gone, the new
        listener takes over, with the connections that wait.
        """
        ...

    async def health(self) -> Health: ...

    async def wait_lost(self) -> str:
        """Waits until the sandbox is lost for good, then returns the reason."""
        ...


@dataclass(frozen=True, slots=True)
class SandboxSpec:
    """What a provider needs to make one sandbox.

    ``labels`` are the caller's own. They help the caller find the sandbox again. ``workspace``: the
    existing workspace that it gets, which no other sandbox has. It may have the id of the sandbox's first
    one, if the caller has made it. It stays if the create fails. Without one it gets a new one.
    """

    id: str
    environment: Environment
    labels: Mapping[str, str] = field(default_factory=dict)
    workspace: str | None = None


@dataclass(frozen=True, slots=True)
class FoundSandbox:
    """A sandbox as the engine reports it, in any state."""

    id: str
    state: str
    environment: str
    tier: Tier
    created_at: float
    labels: Mapping[str, str] = field(default_factory=dict)


class Provider(Protocol):
    @property
    def workspaces(self) -> WorkspaceStore: ...

    async def open(self) -> None:
        """Starts the provider; other calls do this implicitly.

        Raises ``Conflict`` if another provider holds the same data.
        """
        ...

    async def prepare(self, environment: Environment) -> None:
        """Does the work needed once per environment: checks the tier and prepares the image."""
        ...

    async def image_of(self, environment: Environment) -> str:
        """What identifies the image that sandboxes of the environment are made from, until it is forgotten.

        Does what ``prepare`` does if that was not done yet.
        """
        ...

    async def check_image(self, environment: Environment) -> bool:
        """Whether the environment's image is there, without fetching it. False if nobody here can say.

        Raises ``ImageMissing``, which says how to get it, if it is not there.
        """
        ...

    async def forget_rebuilt_images(self) -> Collection[str]:
        """Forgets prepared images whose names now mean another image, and returns these names.

        Later sandboxes are made from the new images.
        """
        ...

    async def create(self, spec: SandboxSpec) -> Sandbox:
        """Makes a sandbox. Returns once the agent inside has answered."""
        ...

    async def adopt(self, sandbox_id: str) -> Sandbox:
        """Takes over a sandbox that is already running, for example after a restart."""
        ...

    async def destroy(self, sandbox_id: str, *, keep: Container[str] = ()) -> None:
        """Removes the sandbox, and its workspace unless the workspace's id is in ``keep``.

        Succeeds if the sandbox is already gone.
        """
        ...

    async def list(self) -> Sequence[FoundSandbox]:
        """Lists this provider's sandboxes, in every state."""
        ...

    def can_update(self, environment: Environment, limits: Limits) -> bool:
        """Whether ``update_limits`` can give a sandbox of this environment these limits."""
        ...

    async def update_limits(self, sandbox_id: str, limits: Limits) -> None: ...

    async def pause(self, sandbox_id: str) -> None: ...

    async def unpause(self, sandbox_id: str) -> None: ...

    async def stats(self, sandbox_id: str) -> Stats: ...

    async def warnings(self) -> Sequence[str]:
        """Returns what an operator should know about the engine; empty if all is well."""
        ...

    async def close(self) -> None:
        """Releases the provider's resources. Sandboxes keep running."""
        ...
