"""``AsyncSession``: one sandbox that keeps its state: run commands, hold shells, touch files."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import time
from collections.abc import AsyncGenerator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Self, Unpack

from sandlot.client.async_exec import AsyncExec
from sandlot.client.async_files import AsyncFiles
from sandlot.client.callbacks import Followed, OnText
from sandlot.client.options import Command, ExecOptions, exec_request, input_bytes
from sandlot.client.result import Result
from sandlot.domain.computer import ExecSummary, Execution, ShellSummary
from sandlot.domain.errors import SandlotError
from sandlot.domain.execution import ExecEvent, ExecRequest, PtySize
from sandlot.domain.service import SandboxService
from sandlot.domain.session import Session, SessionChange, SessionState, Timeout

if TYPE_CHECKING:
    from sandlot.client.async_client import AsyncClient


RUN_TAKES: Final = ("stdin", "check", "on_stdout", "on_stderr")


class AsyncSession:
    """``info`` is what was last heard of the session; ``created``: whether the call that gave it made it.

    ``owned``: whether leaving its context deletes it, as for what ``create`` made for this program alone.
    """

    def __init__(
        self,
        client: AsyncClient,
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
        self._service = service
        self._id = info.id
        self._owned = owned

    @property
    def id(self) -> str:
        return self._id

    @property
    def thread(self) -> str | None:
        return self.info.thread

    @property
    def environment(self) -> str:
        return self.info.environment

    @property
    def state(self) -> SessionState:
        return self.info.state

    @property
    def generation(self) -> int:
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
        """Runs a command to its end. A failed one is a result; with ``check`` it raises ``CommandFailed``.

        ``on_stdout`` and ``on_stderr`` are called with pieces of text as they come; those of an async session
        may be ``async def``. What they raise is raised here, and does not end the command.

        Options: ``ExecOptions``.
        """
        request = exec_request("run", command, options, takes=RUN_TAKES)
        followed = Followed(self.info, request, on_stdout, on_stderr)
        if not followed.callbacks:
            result = Result(await self._service.execute(self._id, request, input_bytes(stdin)))
        else:
            async with contextlib.aclosing(self.events_of(request, stdin)) as events:
                async for event in events:
                    if inspect.isawaitable(answer := followed.see(event)):
                        await answer
            result = followed.result()
        return result.check() if check else result

    def stream(
        self,
        command: Command,
        *,
        stdin: bytes | str | None = None,
        offset: int = 0,
        **options: Unpack[ExecOptions],
    ) -> AsyncGenerator[ExecEvent, None]:
        """Runs a command and gives its events as they happen: Started, Output…, Exited.

        Leaving the loop does not end the command.
        """
        request = exec_request("stream", command, options, takes=("stdin", "offset"))
        return self.events_of(request, stdin, offset)

    async def events_of(
        self, request: ExecRequest, stdin: bytes | str | None = None, offset: int = 0
    ) -> AsyncGenerator[ExecEvent, None]:
        """As ``stream``, for a request that was made already."""
        request = replace(request, stdin=stdin is not None)
        execution = await self._service.start_exec(self._id, request, offset=offset)
        feeding = asyncio.create_task(_feed(execution, input_bytes(stdin)))
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
        """Starts a command in the background: it goes on whatever becomes of this program."""
        request = exec_request(
            "start", command, options, takes=("stdin", "pty"), stdin=stdin or pty is not None, pty=pty
        )
        execution = await self._service.start_exec(self._id, request)
        uncapped = request.output_limit is None
        if not request.stdin and not uncapped:
            # All of its output can be had later, so nobody needs to stay on the line.
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
        """A command on a terminal: write to it, read its events, resize it. Its output has no cap."""
        options.setdefault("output_limit", None)
        return await self.start(command, pty=PtySize(rows, cols), **options)

    async def exec(self, exec_id: str) -> AsyncExec:
        """An exec that runs or ran, by its id."""
        return AsyncExec(self._service, self._id, exec_id)

    async def execs(self) -> list[ExecSummary]:
        return list(await self._service.list_execs(self._id))

    def shell(self, name: str = "main") -> AsyncShell:
        """A bash that keeps its folder, variables and functions; started by its first command."""
        return AsyncShell(self, name)

    async def shells(self) -> list[ShellSummary]:
        return list(await self._service.list_shells(self._id))

    async def close_shell(self, name: str) -> None:
        await self._service.close_shell(self._id, name)

    # its life

    async def refresh(self) -> Self:
        self.info = await self._service.get_session(self._id)
        return self

    async def update(
        self,
        *,
        idle_timeout_s: Timeout | None = None,
        lifetime_s: Timeout | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> Self:
        """None leaves a thing as it is. ``lifetime_s`` counts from the session's creation."""
        change = SessionChange(idle_timeout_s, lifetime_s, metadata)
        self.info = await self._service.update_session(self._id, change)
        return self

    async def extend(self, seconds: float) -> Self:
        """It lives until that many seconds from now, used or not: a shorter idle timeout is raised."""
        now = time.time()
        idle_s = self.info.idle_timeout_s
        enough_s = max(0.0, now - self.info.last_active_at) + seconds
        return await self.update(
            lifetime_s=max(0.0, now - self.info.created_at) + seconds,
            idle_timeout_s=enough_s if idle_s is not None and idle_s < enough_s else None,
        )

    async def recreate(self) -> Self:
        """A new, empty sandbox in place of one that was lost."""
        self.info = await self._service.recreate_session(self._id)
        return self

    async def delete(self) -> None:
        """When it returns, nothing of the session runs any more. Deleting twice is no error."""
        await self._service.delete_session(self._id)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Deletes what ``create`` made. The session of a thread, or one that was got by its id, stays."""
        if self._owned:
            await self.delete()

    def __repr__(self) -> str:
        thread = "" if self.thread is None else f", thread={self.thread!r}"
        return (
            f"<{type(self).__name__} {self.id} {self.state.value}, environment={self.environment!r}{thread}>"
        )


class AsyncShell:
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
        """As ``AsyncSession.run``, in this shell."""
        options["shell"] = self.name
        return await self.session.run(
            command, stdin=stdin, check=check, on_stdout=on_stdout, on_stderr=on_stderr, **options
        )

    async def close(self) -> None:
        await self.session.close_shell(self.name)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} of {self.session.id}>"


async def _feed(execution: Execution, data: bytes | None) -> None:
    if data is None:
        return
    with contextlib.suppress(SandlotError):  # it may end without reading its input; its exit tells
        await execution.write_stdin(data)
        await execution.close_stdin()
