"""``Session`` and what belongs to it, without await."""

from __future__ import annotations

import contextlib
import inspect
from functools import cached_property
from typing import Self, Unpack

from sandlot.client.async_exec import AsyncExec
from sandlot.client.async_files import AsyncFiles
from sandlot.client.async_session import RUN_TAKES, AsyncSession, AsyncShell
from sandlot.client.callbacks import Followed, OnText
from sandlot.client.options import Command, ExecOptions, exec_request
from sandlot.client.result import Result
from sandlot.client.sync.blocking import Facade, blocking, blocking_as, blocking_self, entering, iterating
from sandlot.domain.session import Session as SessionInfo
from sandlot.domain.session import SessionState


class Exec(Facade[AsyncExec]):
    @property
    def id(self) -> str:
        return self._behind.id

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
    @property
    def name(self) -> str:
        return self._behind.name

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
        """As ``Session.run``, in this shell."""
        options["shell"] = self.name
        session = Session(self._behind.session, self._loop)
        return session.run(
            command, stdin=stdin, check=check, on_stdout=on_stdout, on_stderr=on_stderr, **options
        )

    close = blocking(AsyncShell.close)


class Files(Facade[AsyncFiles]):
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


class Session(Facade[AsyncSession]):
    @property
    def info(self) -> SessionInfo:
        return self._behind.info

    @property
    def id(self) -> str:
        return self._behind.id

    @property
    def thread(self) -> str | None:
        return self._behind.thread

    @property
    def environment(self) -> str:
        return self._behind.environment

    @property
    def state(self) -> SessionState:
        return self._behind.state

    @property
    def generation(self) -> int:
        return self._behind.generation

    @property
    def created(self) -> bool:
        return self._behind.created

    @cached_property
    def files(self) -> Files:
        return Files(self._behind.files, self._loop)

    def shell(self, name: str = "main") -> Shell:
        """A bash that keeps its folder, variables and functions; started by its first command."""
        return Shell(self._behind.shell(name), self._loop)

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
        """Runs a command to its end. A failed one is a result; with ``check`` it raises ``CommandFailed``.

        ``on_stdout`` and ``on_stderr`` are called with pieces of text as they come; those of an async session
        may be ``async def``. What they raise is raised here, and does not end the command.

        Options: ``ExecOptions``.
        """
        if on_stdout is None and on_stderr is None:
            return self._loop.run(self._behind.run(command, stdin=stdin, check=check, **options))
        request = exec_request("run", command, options, takes=RUN_TAKES)
        followed = Followed(self.info, request, on_stdout, on_stderr)
        if any(inspect.iscoroutinefunction(callback) for callback in followed.callbacks.values()):
            raise TypeError(
                "run() calls plain functions as on_stdout and on_stderr; an AsyncSession awaits them"
            )
        with contextlib.closing(self.events_of(request, stdin)) as events:
            for event in events:
                followed.see(event)
        result = followed.result()
        return result.check() if check else result

    stream = iterating(AsyncSession.stream)
    events_of = iterating(AsyncSession.events_of)
    start = blocking_as(Exec, AsyncSession.start)
    terminal = blocking_as(Exec, AsyncSession.terminal)
    exec = blocking_as(Exec, AsyncSession.exec)
    execs = blocking(AsyncSession.execs)
    shells = blocking(AsyncSession.shells)
    close_shell = blocking(AsyncSession.close_shell)
    refresh = blocking_self(AsyncSession.refresh)
    update = blocking_self(AsyncSession.update)
    extend = blocking_self(AsyncSession.extend)
    recreate = blocking_self(AsyncSession.recreate)
    delete = blocking(AsyncSession.delete)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Deletes what ``create`` made. The session of a thread, or one that was got by its id, stays."""
        self._loop.run(self._behind.__aexit__(*error))
