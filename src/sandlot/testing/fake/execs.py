"""Execs of the fake: a task that runs the command, its output by offset, and its readers."""

from __future__ import annotations

import asyncio
import contextlib
import shlex
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace

from sandlot.domain.computer import ExecSummary
from sandlot.domain.errors import Conflict, InvalidRequest, SandlotError
from sandlot.domain.execution import (
    MAX_OUTPUT_LIMIT_BYTES,
    Channel,
    ExecEvent,
    ExecRequest,
    ExecResult,
    Exited,
    OnLimit,
    Output,
    PtySize,
    ResultFold,
    Started,
)
from sandlot.domain.network.decisions import Denied
from sandlot.testing.fake.pipes import Notifier, Pipe
from sandlot.testing.fake.shell import new_pid

# Without an output limit: how many bytes are kept for late readers, and how far a reader may lag.
KEPT_BYTES = 1024 * 1024
SHOWN_CHARACTERS = 160  # of a command, in the list of execs
SIGTERM = 15

OnOutput = Callable[[str, Channel, bytes], None]


class FakeExec:
    """One exec. Readers raise ``gone_error`` if its sandbox ends while it runs."""

    def __init__(self, request: ExecRequest, on_output: OnOutput) -> None:
        self.request = request
        self._on_output = on_output
        self.pid = new_pid()
        self.stdin = Pipe()
        self.size = request.pty
        self.exited: Exited | None = None
        self.gone_error: SandlotError | None = None
        self.silence_error: SandlotError | None = None  # set while the sandbox does not answer
        self.notifier = Notifier()
        self.chunks: deque[Output] = deque()
        self.tail: deque[Output] = deque()  # with an output limit: the last bytes
        self.task: asyncio.Task[None] | None = None
        # The verdict that a scripted reply sets.
        self.oom = False
        self.disk_full = False
        self.denied: dict[tuple[str, str], Denied] = {}
        self.readers: set[FakeExecution] = set()
        self._output_bytes = 0
        self._stderr_bytes = 0  # the part of these on stderr
        self._kept = 0
        self._began = time.monotonic()
        self._started_at = time.time()
        self._reason = ""
        self._signal = 0
        if not request.stdin:
            self.stdin.close()

    @property
    def running(self) -> bool:
        return self.exited is None and self.gone_error is None

    @property
    def summary(self) -> ExecSummary:
        request, last = self.request, max(self.readable(), key=lambda output: output.offset, default=None)
        command = request.text or shlex.join(request.argv or ())
        return ExecSummary(
            exec_id=request.exec_id,
            running=self.running,
            shell=request.shell,
            command=command if len(command) <= SHOWN_CHARACTERS else f"{command[:SHOWN_CHARACTERS]}…",
            started_at=self._started_at,
            output_end=0 if last is None else last.offset + len(last.data),
            exit_code=None if self.exited is None else self.exited.code,
            duration_ms=None if self.exited is None else self.exited.duration_ms,
        )

    # --- output -----------------------------------------------------------------------------------

    async def write(self, channel: Channel, data: bytes) -> None:
        if self.request.merge_output or self.request.pty is not None:
            channel = Channel.STDOUT
        if self.request.pty is not None:
            data = data.replace(b"\n", b"\r\n")
        self._on_output(self.request.exec_id, channel, data)
        limit = self.request.output_limit
        at = self._output_bytes
        self._output_bytes += len(data)
        if channel is Channel.STDERR:
            self._stderr_bytes += len(data)
        if limit is None:
            self._keep(self.chunks, Output(channel, at, data))
        else:
            room = max(0, self._head_bytes - at)
            self._keep(self.chunks, Output(channel, at, data[:room]))
            self._keep(self.tail, Output(channel, max(at, self._head_bytes), data[room:]))
            while self._kept > limit and self.tail:
                self._drop_oldest_of_tail(self._kept - limit)
        self.notifier.notify()
        if self._over_limit and self.request.on_limit is OnLimit.KILL:
            self.stop("output_limit", SIGTERM)
        while limit is None and self._kept > KEPT_BYTES and self._make_room():
            await self.notifier.wait()
        await asyncio.sleep(0)

    @property
    def _over_limit(self) -> bool:
        limit = self.request.output_limit
        return limit is not None and self._output_bytes > limit

    @property
    def _head_bytes(self) -> int:
        """The part of the limit that is for the first bytes."""
        limit = self.request.output_limit or 0
        return limit if self.request.on_limit is OnLimit.KILL else limit - limit // 2

    def _keep(self, chunks: deque[Output], output: Output) -> None:
        if output.data:
            chunks.append(output)
            self._kept += len(output.data)

    def _drop_oldest_of_tail(self, size: int) -> None:
        oldest = self.tail.popleft()
        size = min(size, len(oldest.data))
        self._kept -= size
        if size < len(oldest.data):
            self.tail.appendleft(replace(oldest, offset=oldest.offset + size, data=oldest.data[size:]))

    def readable(self) -> Iterator[Output]:
        """Yields what can be read now. An excess output's tail is known only at the end."""
        yield from self.chunks
        if not self._over_limit or self.exited is not None:
            yield from self.tail

    def _make_room(self) -> bool:
        """Drops what every reader has read. Returns whether to wait for a slow reader."""
        needed = min((reader.position for reader in self.readers), default=self._output_bytes)
        while self._kept > KEPT_BYTES and self.chunks[0].offset < needed:
            self._kept -= len(self.chunks.popleft().data)
        return self._kept > KEPT_BYTES

    # --- end --------------------------------------------------------------------------------------

    def stop(self, reason: str, signal: int) -> None:
        """Stops the exec. Only the first reason counts."""
        if self.task is None or not self.running or self._signal:
            return
        self._reason, self._signal = reason, signal
        self.task.get_loop().call_soon_threadsafe(self.task.cancel)

    def finish(self, code: int, *, shell_ended: bool = False, reason: str = "exited") -> None:
        if self._signal:
            code, reason = 128 + self._signal, self._reason
        self.exited = Exited(
            code=code,
            signal=self._signal,
            reason=reason,
            truncated=self._over_limit,
            output_bytes=self._output_bytes,
            stderr_bytes=self._stderr_bytes,
            gap_from=self._head_bytes if self._over_limit else 0,
            gap_to=(self.tail[0].offset if self.tail else self._output_bytes) if self._over_limit else 0,
            duration_ms=(time.monotonic() - self._began) * 1000,
            oom=self.oom,
            disk_full=self.disk_full,
            shell_ended=shell_ended,
            denied=tuple(self.denied.values()),
        )
        self.stdin.stop_reading()
        self.notifier.notify()

    def abort(self, error: SandlotError) -> None:
        """Ends the exec with an error because its sandbox is gone."""
        if self.running:
            self.gone_error = error
            if self.task is not None and not self.task.get_loop().is_closed():
                self.task.get_loop().call_soon_threadsafe(self.task.cancel)
        self.notifier.notify()

    def feed(self, stdin: bytes) -> None:
        """Writes all of stdin, beyond a pipe's bound. A second call changes nothing."""
        if not self.stdin.closed:
            self.stdin.fill(stdin)
            self.stdin.close()

    async def wait_end(self, timeout_s: float | None = None) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self.running and self.silence_error is None:
                    await self.notifier.wait()
        if self.gone_error is not None:
            raise self.gone_error
        if self.silence_error is not None:
            raise self.silence_error

    def resize(self, rows: int, cols: int) -> None:
        if self.request.pty is None or not self.running:
            raise InvalidRequest("The command has no terminal, or has ended.")
        self.size = PtySize(rows, cols)


class FakeExecution:
    """One reader of an exec; implements ``Execution``."""

    def __init__(
        self,
        running: FakeExec,
        offset: int,
        *,
        existing: bool,
        add_origin: Callable[[ExecResult], ExecResult],
    ) -> None:
        if offset < 0:
            raise InvalidRequest("offset must not be negative.")
        self._exec = running
        self._begin = self.position = offset
        self._existing = existing
        self._add_origin = add_origin
        self._iterated = False
        self._detached = False

    @property
    def exec_id(self) -> str:
        return self._exec.request.exec_id

    async def events(self) -> AsyncIterator[ExecEvent]:
        if self._iterated:
            raise RuntimeError("events() can be iterated only once. Attach again to read the events again.")
        self._iterated = True
        self._exec.readers.add(self)
        try:
            yield Started(self._exec.pid, self._existing)
            while not self._detached:
                while (output := self._next()) is not None:
                    self.position = output.offset + len(output.data)
                    self._exec.notifier.notify()
                    yield output
                if self._exec.gone_error is not None:
                    raise self._exec.gone_error
                if self._exec.silence_error is not None:
                    raise self._exec.silence_error
                if self._exec.exited is not None:
                    yield self._exec.exited
                    return
                await self._exec.notifier.wait()
        finally:
            self._release()

    def _next(self) -> Output | None:
        """Returns the next unread output, from the middle of a chunk if needed."""
        for chunk in self._exec.readable():
            end = chunk.offset + len(chunk.data)
            if end > self.position:
                skipped = max(0, self.position - chunk.offset)
                return replace(chunk, offset=chunk.offset + skipped, data=chunk.data[skipped:])
        return None

    async def result(self) -> ExecResult:
        fold = ResultFold(
            self.exec_id, self._exec.request.output_limit or MAX_OUTPUT_LIMIT_BYTES, offset=self._begin
        )
        result = None
        async for event in self.events():
            result = fold.add(event) or result
        if result is None:
            raise Conflict("This reader was detached. Attach again.")
        return self._add_origin(result)

    async def write_stdin(self, data: bytes) -> None:
        exec_ = self._exec
        if not exec_.running or exec_.stdin.closed:
            raise Conflict("The command has ended, or its stdin is closed.")
        if exec_.request.pty is None:
            await exec_.stdin.write(data)
            return
        # A terminal echoes what is typed, and ^D ends the input.
        typed, end, _ = data.replace(b"\r", b"\n").partition(b"\x04")
        await exec_.write(Channel.STDOUT, typed)
        await exec_.stdin.write(typed)
        if end:
            exec_.stdin.close()

    async def close_stdin(self) -> None:
        if self._exec.request.pty is None:
            self._exec.stdin.close()

    async def detach(self) -> None:
        self._detached = True
        self._release()

    def _release(self) -> None:
        self._exec.readers.discard(self)
        self._exec.notifier.notify()
