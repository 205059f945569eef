"""One sandbox of the fake: a file tree, shells with their state, and execs that run once per id."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from sandlot.domain.computer import ExecSummary, ShellSummary
from sandlot.domain.errors import Busy, Conflict, FileProblem, InvalidRequest, NotFound, SandlotError
from sandlot.domain.execution import Channel, ExecRequest, ExecResult
from sandlot.domain.ids import new_sandbox_id
from sandlot.domain.network.decisions import Denied
from sandlot.domain.network.hosts import Target
from sandlot.testing.fake.code.contexts import FakeContexts
from sandlot.testing.fake.execs import SIGTERM, FakeExec, FakeExecution, OnOutput
from sandlot.testing.fake.network.ports import FakePorts
from sandlot.testing.fake.pipes import BrokenPipe
from sandlot.testing.fake.scripts import Scripts
from sandlot.testing.fake.shell import ExitShell, Machine, Shell, State, Streams
from sandlot.testing.fake.tree import WORKSPACE, Folder, Limited, Tree, absolute

SIGKILL = 9
# Signals that a process without a handler survives: CHLD, CONT, STOP, TSTP, TTIN, TTOU, URG, WINCH.
HARMLESS = frozenset({17, 18, 19, 20, 21, 22, 23, 28})


@dataclass
class NamedShell:
    """A named shell. ``state`` is None before its first command and after it has ended."""

    name: str
    cwd: str = WORKSPACE
    state: State | None = None
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    closed: bool = False


class _ChannelSink:
    def __init__(self, running: FakeExec, channel: Channel) -> None:
        self._exec, self._channel = running, channel

    async def write(self, data: bytes) -> None:
        await self._exec.write(self._channel, data)


class FakeComputer:
    def __init__(
        self,
        *,
        env: Mapping[str, str],
        max_execs: int,
        scripts: Scripts,
        add_origin: Callable[[ExecResult], ExecResult],
        on_output: OnOutput,
        on_exec_end: Callable[[FakeExec], None],
        connect: Callable[[Target], Denied | None],
        files: Folder,
        quota_bytes: int | None = None,
        volumes: Mapping[str, Limited] | None = None,
    ) -> None:
        self.id = new_sandbox_id()
        self.tree = Tree(files, quota_bytes, volumes)
        self.ports = FakePorts()
        self.contexts = FakeContexts(scripts.cells)
        self._env = {
            "HOME": WORKSPACE,
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "USER": "sandboxuser",
            "LANG": "C.UTF-8",
            **env,
        }
        self._max_execs = max_execs
        self._scripts = scripts
        self._add_origin = add_origin
        self._on_output = on_output
        self._on_exec_end = on_exec_end
        self._network = connect
        self.frozen = False
        self._execs: dict[str, FakeExec] = {}
        self._shells: dict[str, NamedShell] = {}

    # --- execs ------------------------------------------------------------------------------------

    def start(self, request: ExecRequest, *, offset: int = 0) -> FakeExecution:
        known = self._execs.get(request.exec_id)
        if known is not None:
            if known.request != request:
                raise Conflict(f"exec_id {request.exec_id} was already used for a different command.")
            return self._reader(known, offset, existing=True)
        self._check_cwd(request.cwd)
        if self.running >= self._max_execs:
            raise Busy(f"too many execs are running in this session (at most {self._max_execs})")
        started = FakeExec(request, self._on_output)
        reader = self._reader(started, offset, existing=False)
        self._execs[request.exec_id] = started
        started.task = asyncio.get_running_loop().create_task(
            self._run(started), name=f"fake {request.exec_id}"
        )
        return reader

    def attach(self, exec_id: str, *, offset: int = 0) -> FakeExecution:
        return self._reader(self.exec(exec_id), offset, existing=True)

    def _reader(self, running: FakeExec, offset: int, *, existing: bool) -> FakeExecution:
        return FakeExecution(running, offset, existing=existing, add_origin=self._add_origin)

    def exec(self, exec_id: str) -> FakeExec:
        found = self._execs.get(exec_id)
        if found is None:
            raise NotFound(f"Exec {exec_id[:64]!r} does not exist in this session.")
        return found

    def has_exec(self, exec_id: str) -> bool:
        return exec_id in self._execs

    def freeze(self, error: SandlotError | None) -> None:
        """Makes readers raise ``error`` from now on. None makes the sandbox answer again."""
        self.frozen = error is not None
        for known in self._execs.values():
            known.silence_error = error
            known.notifier.notify()

    @property
    def running(self) -> int:
        return sum(known.running for known in self._execs.values())

    def list_execs(self) -> list[ExecSummary]:
        return [known.summary for known in self._execs.values()]

    def signal(self, exec_id: str, signal: int) -> int:
        if not 1 <= signal <= 64:
            raise InvalidRequest("signal must be a number from 1 to 64.")
        running = self.exec(exec_id)
        if not running.running:
            return 0
        if signal not in HARMLESS:
            running.stop("exited", signal)
        return 1

    def kill(self, exec_id: str) -> int:
        running = self.exec(exec_id)
        if not running.running:
            return 0
        running.stop("killed", SIGTERM)
        return 1

    def _check_cwd(self, cwd: str | None) -> None:
        if cwd is None:
            return
        if not cwd.startswith("/"):
            raise InvalidRequest("cwd must be absolute")
        try:
            self.tree.folder(absolute(cwd))
        except FileProblem as error:
            why = "does not exist" if error.reason == "not_found" else "is not a folder"
            raise InvalidRequest(f"cwd {cwd} {why}") from error

    # --- running ----------------------------------------------------------------------------------

    async def _run(self, running: FakeExec) -> None:
        """Runs an exec in its task. ``stop``, the timeout or the sandbox's end cancels the task."""
        request = running.request
        timer = None
        if request.timeout_s is not None:
            loop = asyncio.get_running_loop()
            timer = loop.call_later(request.timeout_s, running.stop, "timeout", SIGTERM)
        try:
            if request.shell is not None:
                await self._run_in_shell(running, request.shell)
            else:
                state = self._new_state(request.cwd or WORKSPACE, request.env)
                running.finish(await self._run_command(running, state))
        except asyncio.CancelledError:
            if running.running:
                running.finish(128 + SIGTERM, reason="killed")
        finally:
            if timer is not None:
                timer.cancel()
            self._on_exec_end(running)

    async def _run_in_shell(self, running: FakeExec, name: str) -> None:
        shell = self._shells.setdefault(name, NamedShell(name))
        async with shell.turn:
            if shell.closed:
                running.finish(126, reason="start_failed")
                return
            if shell.state is None:
                shell.state = self._new_state(shell.cwd, {})
            state = shell.state
            state.variables.update(running.request.env)
            state.exported.update(running.request.env)
            state.cwd = running.request.cwd or state.cwd
            try:
                code = await self._run_command(running, state, catch_exit=False)
                shell.cwd = state.cwd
                running.finish(code)
            except ExitShell as ended:
                shell.state = None
                running.finish(ended.code, shell_ended=True)
            except asyncio.CancelledError:
                shell.state = None
                if running.running:
                    running.finish(128 + SIGTERM, reason="killed", shell_ended=True)

    async def _run_command(self, running: FakeExec, state: State, *, catch_exit: bool = True) -> int:
        request = running.request
        sinks = [_ChannelSink(running, channel) for channel in (Channel.STDOUT, Channel.STDERR)]
        streams = Streams(running.stdin, sinks[0], sinks[1])
        programs = self._scripts.programs(running)
        machine = Machine(self.tree, programs.find, lambda: _size(running), self._connect)
        shell = Shell(machine, state)
        refusals = self.tree.refusals
        try:
            if request.cell is not None:
                return await self.contexts.run(request.cell, state.variables, sinks[0].write)
            if request.argv is not None:
                if programs.find(request.argv) is None and "/" not in request.argv[0]:
                    await running.write(Channel.STDERR, f"{request.argv[0]}: command not found\n".encode())
                    return 127
                return await shell.run_words(request.argv, streams, {})
            assert request.command is not None
            scripted = programs.find_exact(request.command)
            if scripted is not None:
                return await shell.run_program(scripted, (request.command,), streams)
            return await shell.run_text(request.command, streams)
        except ExitShell as ended:
            if catch_exit:
                return ended.code
            raise
        except BrokenPipe:
            return 128 + 13
        finally:
            running.disk_full = running.disk_full or self.tree.refusals > refusals

    def _connect(self, target: Target) -> Denied | None:
        """A denial shows in the results of all commands that run now."""
        denied = self._network(target)
        for known in self._execs.values():
            if denied is not None and known.running:
                known.denied[denied.target, denied.rule] = denied
        return denied

    def _new_state(self, cwd: str, env: Mapping[str, str]) -> State:
        variables = {**self._env, **env, "PWD": cwd}
        return State(cwd, variables, set(variables))

    # --- shells -----------------------------------------------------------------------------------

    def list_shells(self) -> list[ShellSummary]:
        return [
            ShellSummary(
                shell.name, 0 if shell.state is None else shell.state.pid, shell.cwd, shell.turn.locked()
            )
            for shell in self._shells.values()
        ]

    async def close_shell(self, name: str) -> None:
        shell = self._shells.pop(name, None)
        if shell is None:
            raise NotFound(f"Shell {name[:64]!r} does not exist in this session.")
        shell.closed = True
        in_shell = [known for known in self._execs.values() if known.running and known.request.shell == name]
        for running in in_shell[:1]:
            running.stop("exited", SIGKILL)
            await running.wait_end()

    # --- end --------------------------------------------------------------------------------------

    async def end(self, error: SandlotError) -> None:
        """Ends everything, and returns when nothing runs any more."""
        tasks = self.abort(error)
        if tasks:
            await asyncio.wait(tasks)

    def abort(self, error: SandlotError) -> list[asyncio.Task[None]]:
        """Ends everything and notifies readers and watchers. May be called from another thread."""
        tasks = [known.task for known in self._execs.values() if known.running and known.task is not None]
        for known in self._execs.values():
            known.abort(error)
        self.tree.wake_listeners()
        self.ports.end(error)
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return []
        return [task for task in tasks if task.get_loop() is loop]


def _size(running: FakeExec) -> tuple[int, int] | None:
    return None if running.size is None else (running.size.rows, running.size.cols)
