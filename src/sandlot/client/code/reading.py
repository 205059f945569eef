"""Reads a cell while it runs: its exec's events become the cell's, and then its result."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from sandlot.client.code.code_result import CodeResult
from sandlot.domain.code.events import CellData, CellEvent, CellText, EventLines
from sandlot.domain.code.result import CellFold, Value
from sandlot.domain.errors import SandlotError
from sandlot.domain.execution import (
    MAX_OUTPUT_LIMIT_BYTES,
    Channel,
    ExecEvent,
    ExecRequest,
    ExecResult,
    Output,
    ResultFold,
)
from sandlot.domain.session import Session

OnText = Callable[[str], Any]
OnResult = Callable[[Value], Any]
OnEvent = Callable[[CellEvent], Any]


class CellReader:
    """Takes the events of a cell's exec, and gives those of the cell."""

    def __init__(self, session: Session, request: ExecRequest) -> None:
        self._session = session
        self._lines = EventLines()
        self._cell = CellFold()
        self._exec = ResultFold(request.exec_id, request.output_limit or MAX_OUTPUT_LIMIT_BYTES)
        self._result: ExecResult | None = None
        self._next_offset = 0

    def read(self, event: ExecEvent) -> Iterator[CellEvent]:
        self._result = self._exec.add(event) or self._result
        if not isinstance(event, Output):
            return
        if event.offset > self._next_offset:
            self._lines.skip()
        self._next_offset = event.offset + len(event.data)
        if event.channel is Channel.STDOUT:
            for each in self._lines.feed(event.data):
                self._cell.add(each)
                yield each

    def result(self) -> CodeResult:
        """Return the result. Call this after the last event."""
        if self._result is None:
            raise SandlotError("The code's events ended without an exit event.", may_have_executed=True)
        session = self._session
        raw = replace(self._result, session_id=session.id, generation=session.generation)
        return CodeResult(raw, self._cell.outcome())


class CellCallbacks:
    """Gives a cell's events to the callbacks that want them."""

    def __init__(
        self,
        on_stdout: OnText | None,
        on_stderr: OnText | None,
        on_result: OnResult | None,
        on_event: OnEvent | None,
    ) -> None:
        self._by_channel = {"stdout": on_stdout, "stderr": on_stderr}
        self._on_result = on_result
        self._on_event = on_event
        self.all = [each for each in (on_stdout, on_stderr, on_result, on_event) if each is not None]

    def calls(self, event: CellEvent) -> Iterator[Any]:
        """Call each callback for the event, and yield what it returned; await that if it is a coroutine."""
        if self._on_event is not None:
            yield self._on_event(event)
        match event:
            case CellText(channel, text) if (on_text := self._by_channel[channel]) is not None and text:
                yield on_text(text)
            case CellData() if self._on_result is not None:
                yield self._on_result(Value(event.data, event.main, event.display_id, event.metadata))
