"""``AsyncExec``: a handle to one exec, by its id. The exec runs on without it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass, replace
from typing import Final

from sandlot.client.keywords import resolve_timeout
from sandlot.client.result import Result, text_of
from sandlot.domain.computer import ExecSummary, Execution
from sandlot.domain.errors import NotFound, Unsupported
from sandlot.domain.execution import ExecEvent, Output, ResultFold
from sandlot.domain.kept_output import Omitted
from sandlot.domain.service import ExecStatus, SandboxService

WAIT_PER_REQUEST_S: Final = 3600.0  # after this, ``wait`` sends another request
RECHECK_OUTPUT_S: Final = 1.0  # when reported output does not arrive, ask again how much there is


@dataclass(frozen=True, slots=True)
class OutputSoFar:
    """The output of a command up to now: stdout and stderr, in the order in which they were read.

    ``next_offset``: the offset to pass to the next ``read``. ``exit_code``: set once the command
    has ended. ``omitted``: how much output was not kept, and where it is missing in ``data``.
    """

    data: bytes
    next_offset: int
    running: bool
    exit_code: int | None = None
    omitted: Omitted | None = None

    @property
    def text(self) -> str:
        """``data`` as text."""
        return text_of(self.data, self.omitted)

    @property
    def marked_text(self) -> str:
        """``text``, with a line that says how much is missing, at the place where it is missing."""
        return text_of(self.data, self.omitted, marked=True)


class AsyncExec:
    """A handle to one command run: read its output, wait for it, write to it, kill it.

    The command does not depend on the handle: it goes on when you detach or when your program ends.
    ``AsyncSession.exec`` returns a new handle by the exec's id.
    """

    def __init__(
        self,
        service: SandboxService,
        session_id: str,
        exec_id: str,
        execution: Execution | None = None,
        *,
        uncapped: bool = False,
    ) -> None:
        self._service = service
        self._session_id = session_id
        self._id = exec_id
        self._execution = execution  # carries the input
        self._unread = execution is not None
        self._uncapped = uncapped

    @property
    def id(self) -> str:
        """The exec's id. It names this command run within its session."""
        return self._id

    async def status(self, wait_s: float = 0) -> ExecStatus:
        """Return whether the command runs, and its result once it has ended.

        Waits up to ``wait_s`` seconds for the end.
        """
        return await self._service.get_exec(self._session_id, self._id, wait_s=wait_s)

    async def events(self, offset: int = 0) -> AsyncGenerator[ExecEvent, None]:
        """Iterate over the command's events: ``Started``, ``Output`` (any number), ``Exited``.

        ``offset`` is the offset in the output to start from. A broken connection is replaced.
        """
        if self._execution is not None and self._unread and offset == 0:
            execution, self._unread = self._execution, False
        else:
            execution = await self._service.attach_exec(self._session_id, self._id, offset=offset)
        try:
            async for event in execution.events():
                yield event
        finally:
            if execution is not self._execution:
                await execution.detach()

    async def read(self, offset: int = 0) -> OutputSoFar:
        """Return the output so far, starting at ``offset``.

        This neither waits for more output nor slows the command down. Pass the ``next_offset`` of
        the answer to the next call.
        """
        summary = await self._summary()
        end = summary.output_end
        if end is None:
            raise Unsupported(
                "This sandbox was created by an older version of Sandlot, which has no read(). Use "
                "events(), or delete the session and create a new one."
            )
        if summary.running and end <= offset:
            return OutputSoFar(b"", offset, running=True)
        data, at = bytearray(), offset
        omitted: Omitted | None = None
        # A new reader: the one that carries the input continues from its own position.
        execution = await self._service.attach_exec(self._session_id, self._id, offset=offset)
        events = aiter(execution.events())
        pending: asyncio.Future[ExecEvent | None] | None = None
        try:
            while not (summary.running and at >= end):
                pending = pending or asyncio.ensure_future(anext(events, None))
                await asyncio.wait({pending}, timeout=RECHECK_OUTPUT_S if summary.running else None)
                if not pending.done():
                    # If the output has passed its limit since, less can be read until the end.
                    end = (await self._summary()).output_end or 0
                    continue
                event, pending = pending.result(), None
                if event is None:
                    break
                if isinstance(event, Output):
                    if event.offset > at:
                        # Only one gap can be reported: drop the data between two gaps.
                        del data[len(data) if omitted is None else omitted.at :]
                        omitted = Omitted(len(data), event.offset - offset - len(data))
                    data += event.data
                    at = event.offset + len(event.data)
        finally:
            if pending is not None:
                pending.cancel()
                await asyncio.wait({pending})
            await execution.detach()
        return OutputSoFar(bytes(data), at, summary.running, summary.exit_code, omitted)

    async def _summary(self) -> ExecSummary:
        for summary in await self._service.list_execs(self._session_id):
            if summary.exec_id == self._id:
                return summary
        raise NotFound(f"Exec {self._id!r} does not exist in this session.")

    async def wait(self, timeout_s: float | None = None, *, timeout: float | None = None) -> Result:
        """Wait for the command to end and return its result.

        Raises ``TimeoutError`` if it still runs after ``timeout_s`` seconds; the command goes on
        running. ``timeout`` is another name for ``timeout_s``.

        A command without an output limit pauses until its output is read. If you have not started
        to read it, ``wait`` does.
        """
        timeout_s = resolve_timeout("wait", timeout_s, timeout)
        if self._uncapped and self._unread:
            try:
                async with asyncio.timeout(timeout_s):
                    fold = ResultFold(self._id)
                    async for event in self.events():
                        if (result := fold.add(event)) is not None:
                            return Result(replace(result, session_id=self._session_id))
            except TimeoutError:
                raise self._still_running(timeout_s) from None
        loop = asyncio.get_running_loop()
        deadline = None if timeout_s is None else loop.time() + timeout_s
        while True:
            remaining = WAIT_PER_REQUEST_S if deadline is None else max(0.0, deadline - loop.time())
            status = await self.status(min(remaining, WAIT_PER_REQUEST_S))
            if status.result is not None:
                return Result(status.result)
            if deadline is not None and loop.time() >= deadline:
                raise self._still_running(timeout_s)

    def _still_running(self, timeout_s: float | None) -> TimeoutError:
        return TimeoutError(f"Exec {self._id} is still running after {timeout_s} s.")

    async def write(self, data: bytes | str) -> None:
        """Write to the command's stdin or terminal. It must have been started with one."""
        await (await self._attached()).write_stdin(data.encode() if isinstance(data, str) else data)

    async def close_stdin(self) -> None:
        """Close the command's stdin, so that it reads end-of-file."""
        await (await self._attached()).close_stdin()

    async def _attached(self) -> Execution:
        if self._execution is None:
            self._execution = await self._service.attach_exec(self._session_id, self._id)
            self._unread = True
        return self._execution

    async def signal(self, number: int) -> int:
        """Send a signal to every process of the command; return how many there were."""
        return await self._service.signal_exec(self._session_id, self._id, number)

    async def kill(self) -> int:
        """Kill every process of the command; return how many there were."""
        return await self._service.kill_exec(self._session_id, self._id)

    async def resize(self, rows: int, cols: int) -> None:
        """Set the size of the command's terminal."""
        await self._service.resize_exec(self._session_id, self._id, rows=rows, cols=cols)

    async def detach(self) -> None:
        """Close this handle's connection. The command goes on."""
        if self._execution is not None:
            execution, self._execution = self._execution, None
            await execution.detach()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._id} of {self._session_id}>"
