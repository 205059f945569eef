"""Execs of the fake: a task that runs the command, a log of its output by offset, and readers of that log."""

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
from sandlot.testing.fake.pipes import Bell, Pipe
from sandlot.testing.fake.shell import new_pid

# Of a stream without a limit: what is kept for those who attach later, and how far a reader may lag behind.
KEPT_BYTES = 1024 * 1024
SHOWN_CHARACTERS = 160  # of a command, in a list
SIGTERM = 15


class FakeExec:
    """``gone`` is set when the sandbox goes while it runs; readers are told that instead of an exit."""

    def __init__(self, request: ExecRequest) -> None:
        self.request = request
        self.pid = new_pid()
        self.stdin = Pipe()
        self.size = request.pty
        self.exited: Exited | None = None
        self.gone: SandlotError | None = None
        self.silent: SandlotError | None = None  # what readers are told while the sandbox does not answer
        self.bell = Bell()
        self.chunks: deque[Output] = deque()
        self.tail: deque[Output] = deque()  # of what has a limit: the last bytes
        self.task: asyncio.Task[None] | None = None
        # What a scripted reply says about its end.
        self.oom = False
        self.disk_full = False
        self.readers: set[FakeExecution] = set()
        self._written = 0
        self._errors = 0  # of these, on stderr
        self._kept = 0
        self._began = time.monotonic()
        self._started_at = time.time()
        self._reason = ""
        self._signal = 0
        if not request.stdin:
            self.stdin.close()

    @property
    def running(self) -> bool:
        return self.exited is None and self.gone is None

    @property
    def summary(self) -> ExecSummary:
        request, last = self.request, max(self.readable(), key=lambda output: output.offset, default=None)
        command = request.command or shlex.join(request.argv or ())
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

    # --- output -------------------------------------------------------------------------------

    async def write(self, channel: Channel, data: bytes) -> None:
        if self.request.merge_output or self.request.pty is not None:
            channel = Channel.STDOUT
        if self.request.pty is not None:
            data = data.replace(b"\n", b"\r\n")
        limit = self.request.output_limit
        at = self._written
        self._written += len(data)
        if channel is Channel.STDERR:
            self._errors += len(data)
        if limit is None:
            self._keep(self.chunks, Output(channel, at, data))
        else:
            room = max(0, self._head_room - at)
            self._keep(self.chunks, Output(channel, at, data[:room]))
            self._keep(self.tail, Output(channel, max(at, self._head_room), data[room:]))
            while self._kept > limit and self.tail:
                self._drop_oldest_of_tail(self._kept - limit)
        self.bell.ring()
        if self._over and self.request.on_limit is OnLimit.KILL:
            self.stop("output_limit", SIGTERM)
        while limit is None and self._kept > KEPT_BYTES and self._make_room():
            await self.bell.wait()
        await asyncio.sleep(0)

    @property
    def _over(self) -> bool:
        limit = self.request.output_limit
        return limit is not None and self._written > limit

    @property
    def _head_room(self) -> int:
        """Of a limit: how much is for the first bytes."""
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
        """What can be read now. The end of too much output is known when the command has ended."""
        yield from self.chunks
        if not self._over or self.exited is not None:
            yield from self.tail

    def _make_room(self) -> bool:
        """Drops what every reader has had; says whether to wait for one that lags behind."""
        needed = min((reader.at for reader in self.readers), default=self._written)
        while self._kept > KEPT_BYTES and self.chunks[0].offset < needed:
            self._kept -= len(self.chunks.popleft().data)
        return self._kept > KEPT_BYTES

    # --- its end ------------------------------------------------------------------------------

    def stop(self, reason: str, signal: int) -> None:
        """The first reason counts."""
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
            truncated=self._over,
            output_bytes=self._written,
            stderr_bytes=self._errors,
            gap_from=self._head_room if self._over else 0,
            gap_to=(self.tail[0].offset if self.tail else self._written) if self._over else 0,
            duration_ms=(time.monotonic() - self._began) * 1000,
            oom=self.oom,
            disk_full=self.disk_full,
            shell_ended=shell_ended,
        )
        self.stdin.stop_reading()
        self.bell.ring()

    def lose(self, error: SandlotError) -> None:
        """The sandbox is gone: nothing that runs comes to an end of its own."""
        if self.running:
            self.gone = error
            if self.task is not None and not self.task.get_loop().is_closed():
                self.task.get_loop().call_soon_threadsafe(self.task.cancel)
        self.bell.ring()

    def feed(self, stdin: bytes) -> None:
        """All of it, whatever a pipe holds; the second of two who ask for the same exec changes nothing."""
        if not self.stdin.closed:
            self.stdin.fill(stdin)
            self.stdin.close()

    async def wait_end(self, timeout_s: float | None = None) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self.running and self.silent is None:
                    await self.bell.wait()
        if self.gone is not None:
            raise self.gone
        if self.silent is not None:
            raise self.silent

    def resize(self, rows: int, cols: int) -> None:
        if self.request.pty is None or not self.running:
            raise InvalidRequest("this exec has no terminal, or has ended")
        self.size = PtySize(rows, cols)


class FakeExecution:
    """Implements ``Execution``: one reader."""

    def __init__(
        self, running: FakeExec, offset: int, *, existing: bool, sign: Callable[[ExecResult], ExecResult]
    ) -> None:
        if offset < 0:
            raise InvalidRequest("an offset cannot be negative")
        self._exec = running
        self._begin = self.at = offset
        self._existing = existing
        self._sign = sign
        self._iterated = False
        self._detached = False

    @property
    def exec_id(self) -> str:
        return self._exec.request.exec_id

    async def events(self) -> AsyncIterator[ExecEvent]:
        if self._iterated:
            raise RuntimeError("an execution's events are read once; attach for another reading")
        self._iterated = True
        self._exec.readers.add(self)
        try:
            yield Started(self._exec.pid, self._existing)
            while not self._detached:
                while (output := self._next()) is not None:
                    self.at = output.offset + len(output.data)
                    self._exec.bell.ring()
                    yield output
                if self._exec.gone is not None:
                    raise self._exec.gone
                if self._exec.silent is not None:
                    raise self._exec.silent
                if self._exec.exited is not None:
                    yield self._exec.exited
                    return
                await self._exec.bell.wait()
        finally:
            self._let_go()

    def _next(self) -> Output | None:
        """What comes after what was read, from the middle of a chunk if need be."""
        for chunk in self._exec.readable():
            end = chunk.offset + len(chunk.data)
            if end > self.at:
                skipped = max(0, self.at - chunk.offset)
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
            raise Conflict("this reader was detached; attach again")
        return self._sign(result)

    async def write_stdin(self, data: bytes) -> None:
        exec_ = self._exec
        if not exec_.running or exec_.stdin.closed:
            raise Conflict("the exec has ended or its stdin is closed")
        if exec_.request.pty is None:
            await exec_.stdin.write(data)
            return
        # A terminal: shows what is typed, and ^D at its end is the end of the input.
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
        self._let_go()

    def _let_go(self) -> None:
        self._exec.readers.discard(self)
        self._exec.bell.ring()
