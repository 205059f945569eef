"""``Session`` and what belongs to it, without await."""

from __future__ import annotations

from functools import cached_property
from typing import Self

from sandlot.client.async_exec import AsyncExec
from sandlot.client.async_files import AsyncFiles
from sandlot.client.async_session import AsyncSession, AsyncShell
from sandlot.client.sync.blocking import Facade, blocking, blocking_as, blocking_self, entering, iterating
from sandlot.domain.session import Session as SessionInfo
from sandlot.domain.session import SessionState


class Exec(Facade[AsyncExec]):
    @property
    def id(self) -> str:
        return self._behind.id

    status = blocking(AsyncExec.status)
    events = iterating(AsyncExec.events)
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

    run = blocking(AsyncShell.run)
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

    run = blocking(AsyncSession.run)
    stream = iterating(AsyncSession.stream)
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

    def __exit__(self, *_: object) -> None:
        self.delete()
