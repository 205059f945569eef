"""An engine in memory that does what a test tells it: slow, failing, or with sandboxes that die.

The real one is tested elsewhere; this one is for what cannot be timed or broken at will in it. It outlives
the worker, as an engine does: ``ScriptedProvider`` is one life's hold on it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Container, Mapping, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

from tests.unit.worker.scripted_store import ScriptedStore

from sandlot.domain.capacity.limits import Limits
from sandlot.domain.computer import ByteStream, ExecSummary
from sandlot.domain.environment import Environment, Tier
from sandlot.domain.errors import LinkInterrupted, NotFound, SandboxLost, SandlotError
from sandlot.domain.execution import (
    Channel,
    ExecEvent,
    ExecRequest,
    ExecResult,
    Exited,
    Output,
    ResultFold,
    Started,
)
from sandlot.providers.base import FoundSandbox, OnOutput, OnStart, SandboxSpec
from sandlot.testing.fake.network.ports import StreamEnd
from sandlot.testing.fake.pipes import Pipe


class Switch:
    """One call of the engine: let through, held up until released, or failing."""

    def __init__(self) -> None:
        self.error: SandlotError | None = None
        self.delay_s = 0.0
        self.calls = 0
        self.at_once = 0
        self.most_at_once = 0
        self._open = asyncio.Event()
        self._open.set()

    def hold(self) -> None:
        self._open.clear()

    def release(self) -> None:
        self._open.set()

    async def passed(self) -> None:
        self.calls += 1
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            await asyncio.sleep(self.delay_s)
            await self._open.wait()
        finally:
            self.at_once -= 1
        if self.error is not None:
            raise self.error


class ScriptedExec:
    """A command: ``sleep N`` takes as long, ``wait`` runs until it is told to finish, any other ends at once.

    It belongs to the sandbox: no reader keeps it from going on. Its output is what the command was. The last
    argument of an ``argv`` is a script. Each of its lines may also be ``write NAME TEXT`` or ``exit CODE``.
    """

    def __init__(self, request: ExecRequest, files: dict[str, str]) -> None:
        self.request = request
        self.runs = 1
        self.done = asyncio.Event()
        self.exit_code = 0
        command = request.command or ""
        for step, *words in map(str.split, request.argv[-1].splitlines() if request.argv else ()):
            if step == "write":
                files[words[0]] = words[1]
            elif step == "exit":
                self.exit_code = int(words[0])
            else:
                command = step
        if command.startswith("sleep "):
            asyncio.get_running_loop().call_later(float(command.split()[1]), self.done.set)
        elif command != "wait":
            self.done.set()


class ScriptedExecution:
    def __init__(self, sandbox: ScriptedSandbox, run: ScriptedExec) -> None:
        self._sandbox = sandbox
        self._run = run

    @property
    def exec_id(self) -> str:
        return self._run.request.exec_id

    async def events(self) -> AsyncIterator[ExecEvent]:
        yield Started(1, existing=False)
        await self._sandbox.unless_lost(self._run.done.wait())
        request = self._run.request
        data = (request.command or (request.argv or ("",))[-1]).encode()
        yield Output(Channel.STDOUT, 0, data)
        yield Exited(self._run.exit_code, 0, "exited", output_bytes=len(data))

    async def result(self) -> ExecResult:
        fold = ResultFold(self.exec_id)
        async for event in self.events():
            if (result := fold.add(event)) is not None:
                return result
        raise AssertionError

    async def write_stdin(self, data: bytes) -> None:
        await self._sandbox.unless_lost(asyncio.sleep(0))

    async def close_stdin(self) -> None: ...

    async def detach(self) -> None: ...


class ScriptedFiles:
    def __init__(self, sandbox: ScriptedSandbox) -> None:
        self._sandbox = sandbox
        self.written: dict[str, bytes] = {}

    async def write(self, path: str, content: bytes) -> None:
        await self._sandbox.unless_lost(asyncio.sleep(0))
        self.written[path] = content

    async def read_bytes(self, path: str, *, max_bytes: int = 0) -> bytes:
        await self._sandbox.unless_lost(asyncio.sleep(0))
        return path.encode()

    async def read(self, path: str, *, offset: int = 0, length: int | None = None) -> AsyncIterator[bytes]:
        for piece in (b"first", b"second"):
            await self._sandbox.unless_lost(asyncio.sleep(0))
            yield piece

    @asynccontextmanager
    async def watch(self, path: str, *, recursive: bool = False) -> AsyncIterator[AsyncIterator[Any]]:
        async def changes() -> AsyncIterator[Any]:
            await self._sandbox.unless_lost(asyncio.Event().wait())
            yield None

        yield changes()


class ScriptedListener:
    """A listener inside; ``offer`` is a program that connects, ``break_off`` what a redial does to it."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._streams: asyncio.Queue[Any] = asyncio.Queue()

    def offer(self, stream: ByteStream) -> None:
        self._streams.put_nowait(stream)

    def break_off(self) -> None:
        self._streams.put_nowait(LinkInterrupted("the agent redials"))

    async def connections(self) -> AsyncIterator[ByteStream]:
        while True:
            item = await self._streams.get()
            if isinstance(item, SandlotError):
                raise item
            yield item

    async def close(self) -> None: ...


class ScriptedSandbox:
    """What is in it stays over lives of the worker; ``die`` is the end of it."""

    tier = Tier.RUNC
    agent_program = "/agent"

    def __init__(self, engine: Engine, sandbox_id: str, limits: Limits) -> None:
        self._engine = engine
        self.id = sandbox_id
        self.limits = limits
        self.env: Mapping[str, str] | None = None
        self.max_execs: int | None = None
        self.execs: dict[str, ScriptedExec] = {}
        self.bind_error: SandlotError | None = None
        self.files = ScriptedFiles(self)
        self.listeners: dict[str, list[ScriptedListener]] = {}  # by address, oldest first
        self.listen_error = engine.listen_error
        self.connecting = Switch()
        self.echoes: set[asyncio.Task[None]] = set()
        self.awake = asyncio.Event()  # cleared, it does nothing and answers nobody, as a paused container
        self.awake.set()
        self._death: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def die(self, reason: str = "it was killed") -> None:
        if not self._death.done():
            self._death.set_result(reason)

    @property
    def lost(self) -> bool:
        return self._death.done()

    async def wait_lost(self) -> str:
        return await asyncio.shield(self._death)

    async def unless_lost(self, work: Any) -> None:
        async def when_awake() -> None:
            await work
            await self.awake.wait()

        working = asyncio.ensure_future(when_awake())
        try:
            await asyncio.wait([working, self._death], return_when=asyncio.FIRST_COMPLETED)
        finally:
            working.cancel()
        if self.lost:
            raise SandboxLost(self._death.result())
        await working

    async def bind(self, *, env: Mapping[str, str], max_execs: int | None = None) -> None:
        await self.unless_lost(self._engine.binding.passed())
        if self.bind_error is not None:
            raise self.bind_error
        self.env, self.max_execs = dict(env), max_execs

    async def listen(self, address: str) -> ScriptedListener:
        await self.unless_lost(asyncio.sleep(0))
        if self.listen_error is not None:
            raise self.listen_error
        listener = ScriptedListener(address)
        self.listeners.setdefault(address, []).append(listener)
        return listener

    async def start(
        self, request: ExecRequest, *, offset: int = 0, on_start: OnStart | None = None
    ) -> ScriptedExecution:
        await self.unless_lost(asyncio.sleep(0))
        existing = request.exec_id in self.execs
        self._engine.scripts += () if existing else (request.argv or ())[-1:]
        run = self.execs.setdefault(request.exec_id, ScriptedExec(request, self._engine.store.files(self.id)))
        if on_start is not None:
            on_start(Started(1, existing=existing))
        return ScriptedExecution(self, run)

    async def attach(self, exec_id: str, *, offset: int = 0) -> ScriptedExecution:
        await self.unless_lost(asyncio.sleep(0))
        if exec_id not in self.execs:
            raise NotFound(f"there is no exec {exec_id}")
        return ScriptedExecution(self, self.execs[exec_id])

    async def run(
        self,
        request: ExecRequest,
        stdin: bytes | None = None,
        *,
        on_start: OnStart | None = None,
        on_output: OnOutput | None = None,
    ) -> ExecResult:
        execution = await self.start(request, on_start=on_start)
        fold = ResultFold(request.exec_id)
        async for event in execution.events():
            if on_output is not None and isinstance(event, Output):
                on_output(event)
            if (result := fold.add(event)) is not None:
                return result
        raise AssertionError

    async def signal(self, exec_id: str, signal: int) -> int:
        await self.unless_lost(asyncio.sleep(0))
        self.execs[exec_id].done.set()
        return 1

    async def kill(self, exec_id: str) -> int:
        return await self.signal(exec_id, 9)

    async def connect(self, address: str, *, network: str = "tcp") -> ByteStream:
        """An echo on every port but 1. What waits for it waits as for any other answer."""
        if address.endswith(":1"):
            raise NotFound("refused")
        await self.unless_lost(self.connecting.passed())
        inward, outward = Pipe(), Pipe()

        async def echo() -> None:
            while data := await inward.read():
                await outward.write(data)
            outward.close()

        task = asyncio.create_task(echo())
        self.echoes.add(task)
        task.add_done_callback(self.echoes.discard)
        return StreamEnd(outward, inward)

    async def health(self) -> None:
        await self.unless_lost(asyncio.sleep(0))

    async def list_execs(self) -> Sequence[ExecSummary]:
        await self.unless_lost(self._engine.asking.passed())
        return [ExecSummary(name, not run.done.is_set(), None) for name, run in self.execs.items()]


class Engine:
    """``made`` and ``destroyed``: every id, in order."""

    def __init__(self) -> None:
        self.sandboxes: dict[str, ScriptedSandbox] = {}
        self.store = ScriptedStore()
        self.created_at: dict[str, float] = {}
        self.states: dict[str, str] = {}
        self.made: list[str] = []
        self.destroyed: list[str] = []
        self.scripts: list[str] = []  # that were started, in order
        self.creating, self.destroying, self.updating, self.adopting, self.listing = (
            Switch() for _ in range(5)
        )
        self.rebuilt_images: list[str] = []
        self.images: dict[str, bool | SandlotError] = {}  # whether they are there; of others nobody knows
        self.builds = 0  # of all images; another number is another image
        self.listen_error: SandlotError | None = None  # of sandboxes that are made from now on
        self.binding, self.asking = Switch(), Switch()  # the agents' own calls

    def provider(self) -> ScriptedProvider:
        return ScriptedProvider(self)

    def put(self, sandbox_id: str, *, age_s: float = 0.0, limits: Limits | None = None) -> ScriptedSandbox:
        sandbox = ScriptedSandbox(self, sandbox_id, limits or Limits())
        self.sandboxes[sandbox_id] = sandbox
        self.created_at[sandbox_id] = time.time() - age_s
        self.states[sandbox_id] = "running"
        return sandbox

    def remove(self, sandbox_id: str) -> None:
        """Also from outside, as by an operator."""
        sandbox = self.sandboxes.pop(sandbox_id, None)
        self.states.pop(sandbox_id, None)
        if sandbox is not None:
            self.destroyed.append(sandbox_id)
            sandbox.die("its container is gone")


class ScriptedProvider:
    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.workspaces = engine.store
        self.closed = False

    async def open(self) -> None: ...

    async def prepare(self, environment: Environment) -> None: ...

    async def image_of(self, environment: Environment) -> str:
        return f"{environment.image} {self.engine.builds}"

    async def check_image(self, environment: Environment) -> bool:
        found = self.engine.images.get(environment.image, False)
        if isinstance(found, SandlotError):
            raise found
        return found

    async def forget_rebuilt_images(self) -> Sequence[str]:
        rebuilt, self.engine.rebuilt_images = self.engine.rebuilt_images, []
        return rebuilt

    async def create(self, spec: SandboxSpec) -> ScriptedSandbox:
        await self.engine.creating.passed()
        self.engine.made.append(spec.id)
        self.engine.store.prepare(spec.id, spec.workspace)
        return self.engine.put(spec.id, limits=spec.environment.limits)

    async def adopt(self, sandbox_id: str) -> ScriptedSandbox:
        await self.engine.adopting.passed()
        if sandbox_id not in self.engine.sandboxes:
            raise NotFound(f"there is no sandbox {sandbox_id}")
        return self.engine.sandboxes[sandbox_id]

    async def destroy(self, sandbox_id: str, *, keep: Container[str] = ()) -> None:
        assert not self.closed
        await self.engine.destroying.passed()
        self.engine.remove(sandbox_id)
        self.engine.store.release(sandbox_id, keep)

    async def list(self) -> Sequence[FoundSandbox]:
        await self.engine.listing.passed()
        return [
            FoundSandbox(name, state, "base", Tier.RUNC, self.engine.created_at[name])
            for name, state in self.engine.states.items()
        ]

    def can_update(self, environment: Environment, limits: Limits) -> bool:
        return limits.shm_bytes == environment.limits.shm_bytes

    async def update_limits(self, sandbox_id: str, limits: Limits) -> None:
        await self.engine.updating.passed()
        if sandbox_id not in self.engine.sandboxes:
            raise NotFound(f"there is no sandbox {sandbox_id}")
        self.engine.sandboxes[sandbox_id].limits = limits

    async def warnings(self) -> Sequence[str]:
        return ()

    async def stats(self, sandbox_id: str) -> Any:
        return SimpleNamespace()

    async def close(self) -> None:
        self.closed = True
