"""``Session`` with its ``Exec``, ``Shell`` and ``Files``: the async classes without ``await``."""

from __future__ import annotations

import contextlib
import inspect
from functools import cached_property
from typing import Self, Unpack

from sandlot.client.async_exec import AsyncExec
from sandlot.client.async_files import AsyncFiles
from sandlot.client.async_network import AsyncNetwork
from sandlot.client.async_session import RUN_ARGUMENTS, AsyncSession, AsyncShell
from sandlot.client.callbacks import OnText, OutputDispatcher
from sandlot.client.options import Command, ExecOptions, exec_request
from sandlot.client.result import Result
from sandlot.client.sync.artifacts import SessionArtifacts
from sandlot.client.sync.blocking import Facade, blocking, blocking_as, blocking_self, entering, iterating
from sandlot.client.sync.code import Code
from sandlot.client.sync.workspace import SessionWorkspace
from sandlot.client.workspaces.forks import ForkOptions
from sandlot.domain.session import Session as SessionInfo
from sandlot.domain.session import SessionState
from sandlot.domain.workspaces.snapshots import Restored


class Exec(Facade[AsyncExec]):
    """A handle to one command run: read its output, wait for it, write to it, kill it.

    The command does not depend on the handle: it goes on when you detach or when your program ends.
    ``Session.exec`` returns a new handle by the exec's id.
    """

    @property
    def id(self) -> str:
        """The exec's id. It names this command run within its session."""
        return self._wrapped.id

    status = blocking(AsyncExec.status)
    events = iterating(AsyncExec.events)
    read = blocking(AsyncExec.read)
    wait = blocking(AsyncExec.wait)
    write = blocking(AsyncExec.write)
    close_stdin = blocking(AsyncExec.close_stdin)
    signal = blocking(AsyncExec.signal)
    kill = blocking(AsyncExec.kill)
    resize = blocking(AsyncExec.resize)
    detach = blocking(AsyncExec.detach)


class Shell(Facade[AsyncShell]):
    """A named bash in a session that keeps its folder, variables and functions between commands."""

    @property
    def name(self) -> str:
        """The shell's name, unique in its session."""
        return self._wrapped.name

    def run(
        self,
        command: str,
        *,
        stdin: bytes | str | None = None,
        check: bool = False,
        on_stdout: OnText | None = None,
        on_stderr: OnText | None = None,
        **options: Unpack[ExecOptions],
    ) -> Result:
        """Run a command in this shell; otherwise like ``Session.run``."""
        options["shell"] = self.name
        session = Session(self._wrapped.session, self._loop)
        return session.run(
            command, stdin=stdin, check=check, on_stdout=on_stdout, on_stderr=on_stderr, **options
        )

    close = blocking(AsyncShell.close)


class Files(Facade[AsyncFiles]):
    """The files of a session: read, write, list, search and watch them, upload and download.

    Paths in the sandbox are absolute, or relative to /workspace. A problem in the sandbox raises
    ``FileProblem``. A problem with a file on this machine raises Python's usual ``OSError``.
    """

    read = blocking(AsyncFiles.read)
    read_text = blocking(AsyncFiles.read_text)
    stream = iterating(AsyncFiles.stream)
    write = blocking(AsyncFiles.write)
    list = blocking(AsyncFiles.list)
    walk = blocking(AsyncFiles.walk)
    stat = blocking(AsyncFiles.stat)
    exists = blocking(AsyncFiles.exists)
    mkdir = blocking(AsyncFiles.mkdir)
    move = blocking(AsyncFiles.move)
    remove = blocking(AsyncFiles.remove)
    search = blocking(AsyncFiles.search)
    watch = entering(AsyncFiles.watch)
    upload = blocking(AsyncFiles.upload)
    download = blocking(AsyncFiles.download)


class Network(Facade[AsyncNetwork]):
    """What a session's sandbox may connect to: see it, allow more for a while, lead a port outside.

    A sandbox has no network of its own. The server makes its connections, by the session's policy.
    """

    policy = blocking(AsyncNetwork.policy)
    status = blocking(AsyncNetwork.status)
    allow = blocking(AsyncNetwork.allow)
    revoke = blocking(AsyncNetwork.revoke)
    set = blocking(AsyncNetwork.set)
    forward = blocking(AsyncNetwork.forward)
    unforward = blocking(AsyncNetwork.unforward)


class Session(Facade[AsyncSession]):
    """One sandbox and its state: run commands, keep shells open, read and write files.

    You get one from ``Client.create``, ``thread`` or ``get``. Leaving its ``with`` block deletes
    the session if ``create`` or ``fork`` made it without a thread.
    """

    @property
    def info(self) -> SessionInfo:
        """The session as the server last described it; ``refresh`` updates it."""
        return self._wrapped.info

    @property
    def id(self) -> str:
        """The session's id."""
        return self._wrapped.id

    @property
    def thread(self) -> str | None:
        """The id of the conversation that the session belongs to, if any."""
        return self._wrapped.thread

    @property
    def environment(self) -> str:
        """The name of the session's environment."""
        return self._wrapped.environment

    @property
    def state(self) -> SessionState:
        """The session's state when it was last fetched."""
        return self._wrapped.state

    @property
    def generation(self) -> int:
        """The number of the session's sandbox: 1 for the first, one more for each replacement."""
        return self._wrapped.generation

    @property
    def created(self) -> bool:
        """Whether the call that returned this object created the session."""
        return self._wrapped.created

    @cached_property
    def files(self) -> Files:
        """The session's files."""
        return Files(self._wrapped.files, self._loop)

    @cached_property
    def code(self) -> Code:
        """Runs code in contexts that keep its variables."""
        return Code(self._wrapped.code, self._loop)

    @cached_property
    def artifacts(self) -> SessionArtifacts:
        """The files of the session that stay after its end."""
        return SessionArtifacts(self._wrapped.artifacts, self._loop)

    @cached_property
    def network(self) -> Network:
        """What the session's sandbox may connect to."""
        return Network(self._wrapped.network, self._loop)

    @cached_property
    def workspace(self) -> SessionWorkspace:
        """The session's files as a whole, and their snapshots."""
        return SessionWorkspace(self._wrapped.workspace, self._loop)

    def shell(self, name: str = "main") -> Shell:
        """Return a shell: a bash that keeps its folder, variables and functions between commands.

        The first command in it starts the bash.
        """
        return Shell(self._wrapped.shell(name), self._loop)

    def run(
        self,
        command: Command,
        *,
        stdin: bytes | str | None = None,
        check: bool = False,
        on_stdout: OnText | None = None,
        on_stderr: OnText | None = None,
        **options: Unpack[ExecOptions],
    ) -> Result:
        """Run a command, wait for it to end and return its result.

        A string is a shell command; a sequence of words is a program and its arguments.

        A command that fails is a normal result. With ``check`` it raises ``CommandFailed`` instead.

        ``stdin``: input for the command. ``on_stdout`` and ``on_stderr``: functions that receive
        the output as text while the command runs; with asyncio, they can be ``async def``. If one
        of them raises, this call raises the same error and the command goes on.

        For the other options, see ``ExecOptions``.
        """
        if on_stdout is None and on_stderr is None:
            return self._loop.run(self._wrapped.run(command, stdin=stdin, check=check, **options))
        request = exec_request("run", command, options, accepts=RUN_ARGUMENTS)
        dispatcher = OutputDispatcher(self.info, request, on_stdout, on_stderr)
        if any(inspect.iscoroutinefunction(callback) for callback in dispatcher.callbacks.values()):
            raise TypeError(
                "on_stdout and on_stderr must be plain functions. Use an AsyncSession for async ones."
            )
        with contextlib.closing(self.events_of(request, stdin)) as events:
            for event in events:
                dispatcher.dispatch(event)
        result = dispatcher.result()
        return result.check() if check else result

    stream = iterating(AsyncSession.stream)
    events_of = iterating(AsyncSession.events_of)
    start = blocking_as(Exec, AsyncSession.start)
    terminal = blocking_as(Exec, AsyncSession.terminal)
    exec = blocking_as(Exec, AsyncSession.exec)
    execs = blocking(AsyncSession.execs)
    shells = blocking(AsyncSession.shells)
    usage = blocking(AsyncSession.usage)
    close_shell = blocking(AsyncSession.close_shell)
    expose = blocking(AsyncSession.expose)
    unexpose = blocking(AsyncSession.unexpose)
    previews = blocking(AsyncSession.previews)

    def fork(self, count: int = 1, **options: Unpack[ForkOptions]) -> list[Session]:
        """Make new sessions whose files are this session's, as they are now.

        They have the same environment, limits, metadata, timeouts and network policy, and no variables but
        those in ``env``. Processes, shells and network grants are not copied. From then on each session has
        files of its own. If one of them cannot be created, none is, and this raises the error.

        ``with`` deletes a fork at the end, unless it belongs to a thread. For the options, see
        ``ForkOptions``.
        """
        forks = self._loop.run(self._wrapped.fork(count, **options))
        return [Session(fork, self._loop) for fork in forks]

    def promote(self, fork: Session | str) -> Restored:
        """Give this session the files of another one, such as the best of its forks.

        ``fork``: the session or its id. It stays as it is. Every process of this session ends, and it gets a
        new sandbox; the result says what was lost and what was kept.
        """
        return self._loop.run(self._wrapped.promote(fork if isinstance(fork, str) else fork.id))

    history = iterating(AsyncSession.history)
    recording = iterating(AsyncSession.recording)
    refresh = blocking_self(AsyncSession.refresh)
    update = blocking_self(AsyncSession.update)
    extend = blocking_self(AsyncSession.extend)
    recreate = blocking_self(AsyncSession.recreate)
    hibernate = blocking_self(AsyncSession.hibernate)
    delete = blocking(AsyncSession.delete)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Delete the session if ``create`` made it.

        A thread's session, or one from ``get``, stays.
        """
        self._loop.run(self._wrapped.__aexit__(*error))
