"""``AsyncExec``: a hold on one exec, by its id. The exec does not depend on it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass, replace
from typing import Final

from sandlot.client.keywords import one_timeout
from sandlot.client.result import Result, text_of
from sandlot.domain.computer import ExecSummary, Execution
from sandlot.domain.errors import NotFound, Unsupported
from sandlot.domain.execution import ExecEvent, Output, ResultFold
from sandlot.domain.kept_output import Omitted
from sandlot.domain.service import ExecStatus, SandboxService

WAIT_S: Final = 3600.0  # of one question; who has no limit asks again
LOOK_AGAIN_S: Final = 1.0  # without output that was said to be there


@dataclass(frozen=True, slots=True)
class OutputSoFar:
    """Both channels, in the order in which they were read. ``exit_code``: once it has ended.

    ``omitted``: what was not kept of it, and where it is missing in ``data``.
    """

    data: bytes
    next_offset: int
    running: bool
    exit_code: int | None = None
    omitted: Omitted | None = None

    @property
    def text(self) -> str:
        return text_of(self.data, self.omitted)

    @property
    def marked_text(self) -> str:
        """The text with a line that says how much is missing, where it is."""
        return text_of(self.data, self.omitted, marked=True)


class AsyncExec:
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
        self._execution = execution  # the line that input goes over
        self._unread = execution is not None
        self._uncapped = uncapped

    @property
    def id(self) -> str:
        return self._id

    async def status(self, wait_s: float = 0) -> ExecStatus:
        """Whether it runs, and its result if it does not; waits up to ``wait_s`` seconds for that."""
        return await self._service.get_exec(self._session_id, self._id, wait_s=wait_s)

    async def events(self, offset: int = 0) -> AsyncGenerator[ExecEvent, None]:
        """Started, Output…, Exited, from this offset of the output on; a broken connection is replaced."""
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
        """What it has written so far, from an offset on, without waiting for more or holding it up.

        ``next_offset`` of the answer is what to give the next time.
        """
        summary = await self._summary()
        end = summary.output_end
        if end is None:
            raise Unsupported("this sandbox's agent is of an older version: read events() instead")
        if summary.running and end <= offset:
            return OutputSoFar(b"", offset, running=True)
        data, at = bytearray(), offset
        omitted: Omitted | None = None
        # Not the line that input goes over: that one goes on from where it is.
        execution = await self._service.attach_exec(self._session_id, self._id, offset=offset)
        events = aiter(execution.events())
        coming: asyncio.Future[ExecEvent | None] | None = None
        try:
            while not (summary.running and at >= end):
                coming = coming or asyncio.ensure_future(anext(events, None))
                await asyncio.wait({coming}, timeout=LOOK_AGAIN_S if summary.running else None)
                if not coming.done():
                    # With a limit that was passed since, there is less to read until the command has ended.
                    end = (await self._summary()).output_end or 0
                    continue
                event, coming = coming.result(), None
                if event is None:
                    break
                if isinstance(event, Output):
                    if event.offset > at:
                        # One place is told: what came between two gaps is left out with them.
                        del data[len(data) if omitted is None else omitted.at :]
                        omitted = Omitted(len(data), event.offset - offset - len(data))
                    data += event.data
                    at = event.offset + len(event.data)
        finally:
            if coming is not None:
                coming.cancel()
                await asyncio.wait({coming})
            await execution.detach()
        return OutputSoFar(bytes(data), at, summary.running, summary.exit_code, omitted)

    async def _summary(self) -> ExecSummary:
        for summary in await self._service.list_execs(self._session_id):
            if summary.exec_id == self._id:
                return summary
        raise NotFound(f"there is no exec {self._id!r} in this session")

    async def wait(self, timeout_s: float | None = None, *, timeout: float | None = None) -> Result:
        """Its result; ``TimeoutError`` if it still runs after ``timeout_s``, and it goes on running.

        ``timeout`` is another name for ``timeout_s``.

        An exec without an output limit waits for its reader. So this reads it, as far as nobody did.
        """
        timeout_s = one_timeout("wait", timeout_s, timeout)
        if self._uncapped and self._unread:
            try:
                async with asyncio.timeout(timeout_s):
                    fold = ResultFold(self._id)
                    async for event in self.events():
                        if (result := fold.add(event)) is not None:
                            return Result(replace(result, session_id=self._session_id))
            except TimeoutError:
                raise self._still_runs(timeout_s) from None
        loop = asyncio.get_running_loop()
        deadline = None if timeout_s is None else loop.time() + timeout_s
        while True:
            left = WAIT_S if deadline is None else max(0.0, deadline - loop.time())
            status = await self.status(min(left, WAIT_S))
            if status.result is not None:
                return Result(status.result)
            if deadline is not None and loop.time() >= deadline:
                raise self._still_runs(timeout_s)

    def _still_runs(self, timeout_s: float | None) -> TimeoutError:
        return TimeoutError(f"exec {self._id} still runs after {timeout_s} seconds")

    async def write(self, data: bytes | str) -> None:
        """To its stdin or terminal; it must have been started with one."""
        await (await self._line()).write_stdin(data.encode() if isinstance(data, str) else data)

    async def close_stdin(self) -> None:
        await (await self._line()).close_stdin()

    async def _line(self) -> Execution:
        if self._execution is None:
            self._execution = await self._service.attach_exec(self._session_id, self._id)
            self._unread = True
        return self._execution

    async def signal(self, number: int) -> int:
        """To every process of the exec; returns how many there were."""
        return await self._service.signal_exec(self._session_id, self._id, number)

    async def kill(self) -> int:
        return await self._service.kill_exec(self._session_id, self._id)

    async def resize(self, rows: int, cols: int) -> None:
        await self._service.resize_exec(self._session_id, self._id, rows=rows, cols=cols)

    async def detach(self) -> None:
        """Lets go of it; it goes on."""
        if self._execution is not None:
            execution, self._execution = self._execution, None
            await execution.detach()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._id} of {self._session_id}>"
