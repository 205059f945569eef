"""``AsyncSession``: one sandbox that keeps its state, with its shells and files."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import replace
from typing import Final, Protocol, Self, Unpack

from sandlot.client.artifacts.async_artifacts import AsyncSessionArtifacts
from sandlot.client.async_exec import AsyncExec
from sandlot.client.async_files import AsyncFiles
from sandlot.client.async_network import AsyncNetwork
from sandlot.client.callbacks import OnText, OutputDispatcher
from sandlot.client.code.async_code import AsyncCode
from sandlot.client.events import event_query, iterate_events
from sandlot.client.options import Command, ExecOptions, exec_request, input_bytes
from sandlot.client.result import Result
from sandlot.client.session_ports import AsyncSessionPorts
from sandlot.client.workspaces.async_workspace import AsyncSessionWorkspace
from sandlot.client.workspaces.session_forks import AsyncSessionForks
from sandlot.domain.capacity.usage import SandboxUsage
from sandlot.domain.computer import ExecSummary, Execution, ShellSummary
from sandlot.domain.errors import SandlotError
from sandlot.domain.execution import ExecEvent, ExecRequest, PtySize
from sandlot.domain.history.events import Event
from sandlot.domain.service import SandboxService
from sandlot.domain.session import Session, SessionChange, SessionState, Timeout

RUN_ARGUMENTS: Final = ("stdin", "check", "on_stdout", "on_stderr")


class ServiceClient(Protocol):
    """What a session knows of the client that made it, which is an ``AsyncClient``."""

    @property
    def service(self) -> SandboxService:
        """The service behind the client."""
        ...

    async def opened(self) -> SandboxService:
        """Return the service; the first call starts a local one."""
        ...

    async def aclose(self) -> None:
        """Close the client. Sessions stay; those of a local client end with its worker."""
        ...


class AsyncSession(AsyncSessionPorts, AsyncSessionForks):
    """One sandbox and its state: run commands, keep shells open, read and write files.

    You get one from ``AsyncClient.create``, ``thread`` or ``get``.

    ``info``: the session as the server last described it; ``refresh`` updates it. ``files``: the
    session's files. ``code``: runs code whose variables stay. ``workspace``: its files as a whole, and
    their snapshots. ``artifacts``: its files that stay after its end. ``network``: what its sandbox may
    connect to. ``created``: whether the call that returned this object created the session. ``owned``:
    whether leaving the ``async with`` block deletes the session. This is the case for sessions that
    ``create`` and ``fork`` made without a thread.
    """

    def __init__(
        self,
        client: ServiceClient,
        service: SandboxService,
        info: Session,
        created: bool = False,
        *,
        owned: bool = False,
    ) -> None:
        self.client = client
        self.info = info
        self.created = created
        self.files = AsyncFiles(service.files(info.id))
        self.code = AsyncCode(self, service)
        self.network = AsyncNetwork(service, info.id)
        self.workspace = AsyncSessionWorkspace(self, service)
        self.artifacts = AsyncSessionArtifacts(service, info.id)
        self._service = service
        self._id = info.id
        self._owned = owned

    @property
    def id(self) -> str:
        """The session's id."""
        return self._id

    @property
    def thread(self) -> str | None:
        """The id of the conversation that the session belongs to, if any."""
        return self.info.thread

    @property
    def environment(self) -> str:
        """The name of the session's environment."""
        return self.info.environment

    @property
    def state(self) -> SessionState:
        """The session's state when it was last fetched."""
        return self.info.state

    @property
    def generation(self) -> int:
        """The number of the session's sandbox: 1 for the first, one more for each replacement."""
        return self.info.generation

    # commands

    async def run(
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
        request = exec_request("run", command, options, accepts=RUN_ARGUMENTS)
        dispatcher = OutputDispatcher(self.info, request, on_stdout, on_stderr)
        if not dispatcher.callbacks:
            result = Result(await self._service.execute(self._id, request, input_bytes(stdin)))
        else:
            async with contextlib.aclosing(self.events_of(request, stdin)) as events:
                async for event in events:
                    if inspect.isawaitable(awaitable := dispatcher.dispatch(event)):
                        await awaitable
            result = dispatcher.result()
        return result.check() if check else result

    def stream(
        self,
        command: Command,
        *,
        stdin: bytes | str | None = None,
        offset: int = 0,
        **options: Unpack[ExecOptions],
    ) -> AsyncGenerator[ExecEvent, None]:
        """Run a command and iterate over its events: ``Started``, any ``Output``, ``Exited``.

        Leaving the loop early does not end the command. ``offset``: skip output before it.
        """
        request = exec_request("stream", command, options, accepts=("stdin", "offset"))
        return self.events_of(request, stdin, offset)

    async def events_of(
        self, request: ExecRequest, stdin: bytes | str | None = None, offset: int = 0
    ) -> AsyncGenerator[ExecEvent, None]:
        """Like ``stream``, for an ``ExecRequest`` that you have built yourself."""
        request = replace(request, stdin=stdin is not None)
        execution = await self._service.start_exec(self._id, request, offset=offset)
        feeding = asyncio.create_task(_feed_stdin(execution, input_bytes(stdin)))
        try:
            async for event in execution.events():
                yield event
        finally:
            feeding.cancel()
            await asyncio.wait({feeding})
            await execution.detach()

    async def start(
        self,
        command: Command,
        *,
        stdin: bool = False,
        pty: PtySize | None = None,
        **options: Unpack[ExecOptions],
    ) -> AsyncExec:
        """Start a command in the background and return a handle to it.

        The command goes on even if this program ends. ``stdin``: keep its stdin open for
        ``write``. ``pty``: run it on a terminal of this size.
        """
        request = exec_request(
            "start", command, options, accepts=("stdin", "pty"), stdin=stdin or pty is not None, pty=pty
        )
        execution = await self._service.start_exec(self._id, request)
        uncapped = request.output_limit is None
        if not request.stdin and not uncapped:
            # The agent keeps the output up to the limit, so no reader needs to stay connected.
            await execution.detach()
            return AsyncExec(self._service, self._id, request.exec_id)
        return AsyncExec(self._service, self._id, request.exec_id, execution, uncapped=uncapped)

    async def terminal(
        self,
        command: Command = ("bash", "-l"),
        *,
        rows: int = 24,
        cols: int = 80,
        **options: Unpack[ExecOptions],
    ) -> AsyncExec:
        """Start a command on a terminal, a login bash by default.

        Write to the returned handle, read its events, resize it. Output has no limit by default.
        """
        options.setdefault("output_limit", None)
        return await self.start(command, pty=PtySize(rows, cols), **options)

    async def exec(self, exec_id: str) -> AsyncExec:
        """Return a handle to a command that runs or has ended, by its exec id."""
        return AsyncExec(self._service, self._id, exec_id)

    async def execs(self) -> list[ExecSummary]:
        """List the commands of this session that run or have ended."""
        return list(await self._service.list_execs(self._id))

    def shell(self, name: str = "main") -> AsyncShell:
        """Return a shell: a bash that keeps its folder, variables and functions between commands.

        The first command in it starts the bash.
        """
        return AsyncShell(self, name)

    async def shells(self) -> list[ShellSummary]:
        """List the open shells."""
        return list(await self._service.list_shells(self._id))

    async def close_shell(self, name: str) -> None:
        """Close a shell."""
        await self._service.close_shell(self._id, name)

    # history

    def history(
        self,
        *,
        kinds: Sequence[str] = (),
        since: float | None = None,
        until: float | None = None,
        follow: bool = False,
        partial: bool = False,
    ) -> AsyncGenerator[Event, None]:
        """Iterate over what happened in this session, oldest first. It stays after the session's end.

        ``kinds``: only these kinds of events, such as ``["exec.ended"]``; see ``EventKind``. ``since`` and
        ``until``: only events from this time on, and before that one, in seconds since the epoch.
        ``follow``: go on with each event as it happens. ``partial``: if workers of a fleet do not answer,
        go without their events instead of raising ``Unavailable`` at the end.
        """
        query = event_query(session=self._id, kinds=kinds, since=since, until=until)
        return iterate_events(self._service, query, follow=follow, partial=partial)

    async def recording(self) -> AsyncGenerator[bytes, None]:
        """Iterate over the session's recording, in pieces: an asciicast (version 2) of what commands wrote.

        Write the pieces to a file that ends with ``.cast``, and replay it with ``asciinema play``. The
        session must have been created with ``record=True``. The recording stays after the session's end.
        """
        async for piece in self._service.read_recording(self._id):
            yield piece

    # lifecycle

    async def refresh(self) -> Self:
        """Fetch ``info`` from the server again."""
        self.info = await self._service.get_session(self._id)
        return self

    async def usage(self) -> SandboxUsage:
        """Measure what the sandbox uses now: processor time, memory, processes and disk."""
        return await self._service.get_usage(self._id)

    async def update(
        self,
        *,
        idle_timeout_s: Timeout | None = None,
        lifetime_s: Timeout | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> Self:
        """Change when the session ends, or its metadata; None leaves a value as it is.

        ``lifetime_s`` counts from the session's creation, or from when it last woke from hibernation.
        """
        change = SessionChange(idle_timeout_s, lifetime_s, metadata)
        self.info = await self._service.update_session(self._id, change)
        return self

    async def extend(self, seconds: float) -> Self:
        """Keep the session for this many seconds from now, used or not.

        An idle timeout that would end it earlier is raised.
        """
        now = time.time()
        idle_s = self.info.idle_timeout_s
        enough_s = max(0.0, now - self.info.last_active_at) + seconds
        return await self.update(
            lifetime_s=max(0.0, now - self.info.lifetime_from) + seconds,
            idle_timeout_s=enough_s if idle_s is not None and idle_s < enough_s else None,
        )

    async def recreate(self) -> Self:
        """Give the session a new sandbox in place of its lost or unresponsive one, with its files.

        ``info.loss`` says what was lost.
        """
        self.info = await self._service.recreate_session(self._id)
        return self

    async def delete(self) -> None:
        """Delete the session with its sandbox and files. Its snapshots stay.

        When this returns, no process of the session runs any more. Deleting twice is no error.
        """
        await self._service.delete_session(self._id)

    def _forked(self, info: Session) -> Self:
        return type(self)(self.client, self._service, info, created=True, owned=info.thread is None)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Delete the session if ``create`` made it.

        A thread's session, or one from ``get``, stays.
        """
        if self._owned:
            await self.delete()

    def __repr__(self) -> str:
        thread = "" if self.thread is None else f", thread={self.thread!r}"
        return (
            f"<{type(self).__name__} {self.id} {self.state.value}, environment={self.environment!r}{thread}>"
        )


class AsyncShell:
    """A named bash in a session that keeps its folder, variables and functions between commands."""

    def __init__(self, session: AsyncSession, name: str) -> None:
        self.session = session
        self.name = name

    async def run(
        self,
        command: str,
        *,
        stdin: bytes | str | None = None,
        check: bool = False,
        on_stdout: OnText | None = None,
        on_stderr: OnText | None = None,
        **options: Unpack[ExecOptions],
    ) -> Result:
        """Run a command in this shell; otherwise like ``AsyncSession.run``."""
        options["shell"] = self.name
        return await self.session.run(
            command, stdin=stdin, check=check, on_stdout=on_stdout, on_stderr=on_stderr, **options
        )

    async def close(self) -> None:
        """Close the shell."""
        await self.session.close_shell(self.name)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} of {self.session.id}>"


async def _feed_stdin(execution: Execution, data: bytes | None) -> None:
    if data is None:
        return
    # The command may end without reading its input. Its exit event reports the end.
    with contextlib.suppress(SandlotError):
        await execution.write_stdin(data)
        await execution.close_stdin()
