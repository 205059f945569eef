"""Starts execs, reads their events, and gets their results across broken links.

An exec belongs to the agent, not to the link. So a reader that lost its link attaches again at the
next offset. An exec whose start was never confirmed may be started again with the same id, because
the agent never runs an id twice.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any, Final

from sandlot.domain.errors import Conflict, InvalidRequest, LinkInterrupted, SandboxLost, Unsupported
from sandlot.domain.execution import (
    MAX_OUTPUT_LIMIT_BYTES,
    ExecEvent,
    ExecRequest,
    ExecResult,
    Output,
    ResultFold,
    Started,
)
from sandlot.domain.ids import is_exec_id
from sandlot.providers.base import OnOutput, OnStart
from sandlot.providers.link.link import REDIAL_TIMEOUT_S, AgentLink
from sandlot.providers.link.stream import Data, LinkClosed, Stream, StreamReset
from sandlot.wire.agent_messages import ExecEvents
from sandlot.wire.frames import MAX_DATA_BYTES, ProtocolViolation

MAX_BREAKS_WITHOUT_PROGRESS: Final = 5  # links in a row that broke before a single event arrived
MERGE_MIN_MINOR: Final = 1  # the first minor version of the protocol that has `merge`


def start_request(request: ExecRequest, offset: int = 0) -> dict[str, Any]:
    body: dict[str, Any] = {"op": "exec.start", "exec_id": request.exec_id}
    if request.argv is not None:
        body["argv"] = list(request.argv)
    else:
        body["command"] = request.command
    if request.cwd is not None:
        body["cwd"] = request.cwd
    if request.env:
        body["env"] = dict(request.env)
    body["stdin"] = request.stdin
    body["timeout_ms"] = 0 if request.timeout_s is None else math.ceil(request.timeout_s * 1000)
    body["output_limit"] = request.output_limit or 0
    body["on_limit"] = request.on_limit.value
    if request.pty is not None:
        body["pty"] = {"rows": request.pty.rows, "cols": request.pty.cols}
    if request.shell is not None:
        body["shell"] = request.shell
    if request.merge_output:
        body["merge"] = True
    if offset:
        body["offset"] = offset
    return body


def attach_request(exec_id: str, offset: int = 0) -> dict[str, Any]:
    return {"op": "exec.attach", "exec_id": exec_id, "offset": offset}


def _check_supported(link: AgentLink, request: dict[str, Any]) -> None:
    """Rejects `merge` for an older agent, which would ignore it and not keep the output's order."""
    if request.get("merge") and (
        link.handshake_result is None or link.handshake_result.minor < MERGE_MIN_MINOR
    ):
        raise Unsupported(
            "This sandbox's agent is an older version that cannot merge stdout and stderr. Leave out "
            "merge_output, or use a new session."
        )


async def _next_event(stream: Stream, events: ExecEvents) -> ExecEvent | None:
    """Returns the next event, or None at the end. An invalid event closes the link."""
    item = await stream.receive()
    try:
        if isinstance(item, Data):
            return events.data(item.channel, item.offset, item.data)
        if item is not None:
            return events.message(item.body)
        events.end()
    except ProtocolViolation as violation:
        raise stream.mux.close_for_violation(violation) from violation
    return None


class AgentExecution:
    """Implements ``Execution``: one reader's stream of an exec's events."""

    def __init__(self, link: AgentLink, exec_id: str, stream: Stream, events: ExecEvents, started: Started):
        self._link = link
        self._exec_id = exec_id
        self._stream = stream
        self._events = events
        self.started = started
        self._offset = events.next_offset
        self._iterated = False

    @classmethod
    async def open(
        cls, link: AgentLink, exec_id: str, request: dict[str, Any], *, offset: int, stdin: bool
    ) -> AgentExecution:
        """Waits for the agent's confirmation, so a refusal is raised here and not to a reader."""
        if not is_exec_id(exec_id) or offset < 0:
            raise InvalidRequest("Invalid exec id or negative offset.")
        mux = await link.core()
        _check_supported(link, request)
        events = ExecEvents(offset)
        stream = None
        try:
            stream = await mux.open(request, end=not stdin)
            first = await _next_event(stream, events)
            assert isinstance(first, Started), "events begin with the start"
            return cls(link, exec_id, stream, events, first)
        except (StreamReset, LinkClosed) as problem:
            raise link.error_for(problem) from problem
        except BaseException:
            if stream is not None:
                stream.close()
            raise

    @property
    def exec_id(self) -> str:
        return self._exec_id

    async def events(self) -> AsyncIterator[ExecEvent]:
        if self._iterated:
            raise RuntimeError("events() can be iterated only once. Attach again to read the events again.")
        self._iterated = True
        try:
            yield self.started
            while (event := await _next_event(self._stream, self._events)) is not None:
                yield event
        except (StreamReset, LinkClosed) as problem:
            error = self._link.error_for(problem)
            error.may_have_executed = True  # the agent confirmed the exec before any event
            raise error from problem
        finally:
            self._stream.close()

    async def result(self) -> ExecResult:
        fold = ResultFold(self._exec_id, offset=self._offset)
        result = None
        async for event in self.events():
            result = fold.add(event) or result
        assert result is not None, "events end with an exit"
        return result

    async def write_stdin(self, data: bytes) -> None:
        try:
            await self._stream.send_data(data)
        except StreamReset as problem:
            if problem.code == "gone":
                raise Conflict("The command has ended, or its stdin is closed.") from None
            raise self._link.error_for(problem) from problem
        except LinkClosed as problem:
            raise self._link.error_for(problem) from problem

    async def close_stdin(self) -> None:
        self._stream.send_end()

    async def detach(self) -> None:
        self._stream.close()


class Run:
    """One ``run``: starts an exec and reads it to the end, resuming after broken links."""

    def __init__(
        self,
        link: AgentLink,
        request: ExecRequest,
        stdin: bytes | None,
        redial_timeout_s: float = REDIAL_TIMEOUT_S,
        on_start: OnStart | None = None,
        on_output: OnOutput | None = None,
    ) -> None:
        self._link = link
        self._stdin = stdin
        self._request = request if stdin is None or request.stdin else replace(request, stdin=True)
        self._redial_timeout_s = redial_timeout_s
        self._on_start = on_start
        self._on_output = on_output
        self._fold = ResultFold(request.exec_id, request.output_limit or MAX_OUTPUT_LIMIT_BYTES)
        self._next_offset = 0
        self._confirmed = False
        self._made_progress = False

    async def result(self) -> ExecResult:
        open_request = start_request(self._request)
        stdin = self._stdin or b""
        sent = False  # whether the exec may be running; errors report it
        breaks_without_progress = 0
        while True:
            try:
                mux = await self._link.core(self._redial_timeout_s)
            except (LinkInterrupted, SandboxLost) as problem:
                problem.may_have_executed = sent
                raise
            _check_supported(self._link, open_request)
            self._made_progress = False
            sent = True
            try:
                # An END on attach would close a stdin that the exec may not have received in full.
                end = not self._stdin if open_request["op"] == "exec.attach" else not self._request.stdin
                return await self._read(await mux.open(open_request, end=end), stdin)
            except StreamReset as reset:
                if reset.code != "not_found" or open_request["op"] != "exec.attach":
                    error = self._link.error_for(reset)
                    if self._confirmed or open_request["op"] == "exec.attach":
                        error.may_have_executed = True
                    raise error from reset
                if self._confirmed:
                    raise SandboxLost(f"the sandbox no longer knows exec {self._request.exec_id}") from reset
                open_request, stdin = start_request(self._request), self._stdin or b""
                continue
            except LinkClosed as closed:
                if self._link.failure is not None:
                    raise self._link.error_for(closed) from closed
                breaks_without_progress = 0 if self._made_progress else breaks_without_progress + 1
                if breaks_without_progress >= MAX_BREAKS_WITHOUT_PROGRESS:
                    raise LinkInterrupted(
                        f"The connection to the sandbox broke {breaks_without_progress} times in a row."
                    ) from closed
                open_request = attach_request(self._request.exec_id, self._next_offset)
                stdin = b""

    async def _read(self, stream: Stream, stdin: bytes) -> ExecResult:
        events = ExecEvents(self._next_offset)
        stdin_task = None
        attached = stream.request["op"] == "exec.attach"
        try:
            if self._request.stdin and not attached:
                if len(stdin) <= MAX_DATA_BYTES:
                    # Within the first credit, so it leaves together with the request.
                    await _send_stdin(stream, stdin)
                else:
                    stdin_task = stream.mux.loop.create_task(_send_stdin(stream, stdin))
            result = None
            while (event := await _next_event(stream, events)) is not None:
                if isinstance(event, Started):
                    self._made_progress = not self._confirmed
                    if self._on_start is not None and not self._confirmed:
                        # Attached before its start was confirmed: it is this run's exec after all.
                        self._on_start(replace(event, existing=False) if attached else event)
                    self._confirmed = True
                    if attached and self._stdin:
                        # How much stdin the exec got is unknown: send neither the rest nor an END.
                        raise LinkInterrupted(
                            "The connection to the sandbox broke, and stdin cannot be resumed."
                        )
                    continue
                self._made_progress = True
                self._next_offset = events.next_offset
                if self._on_output is not None and isinstance(event, Output):
                    self._on_output(event)
                result = self._fold.add(event)
            assert result is not None, "events end with an exit"
            return result
        finally:
            if stdin_task is not None:
                stdin_task.cancel()
            stream.close()


async def _send_stdin(stream: Stream, stdin: bytes) -> None:
    # A command may end without reading its stdin. The reader of its events reports how it ended.
    with contextlib.suppress(StreamReset, LinkClosed):
        await stream.send_data(stdin)
        stream.send_end()
