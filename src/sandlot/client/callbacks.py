"""Passes a command's output to callback functions while the command runs."""

from __future__ import annotations

import codecs
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from sandlot.client.result import Result
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


class TextDecoder:
    """Decodes output events to text. A character that is split between two events comes out whole.

    After a gap, decoding starts afresh. Otherwise half a character before the gap and half of
    another one after it could become a third character.
    """

    def __init__(self) -> None:
        self._decoders = {channel: codecs.getincrementaldecoder("utf-8")("replace") for channel in Channel}
        # Text that a gap cut off, until the channel's next event.
        self._partial = dict.fromkeys(Channel, "")
        self._next_offset = 0

    def decode(self, event: Output) -> str:
        if event.offset > self._next_offset:
            for channel, decoder in self._decoders.items():
                self._partial[channel] += decoder.decode(b"", final=True)
        self._next_offset = event.offset + len(event.data)
        partial, self._partial[event.channel] = self._partial[event.channel], ""
        return partial + self._decoders[event.channel].decode(event.data)


class OutputDispatcher:
    """Passes the text of a command's events to the callbacks and folds the events into a result."""

    def __init__(
        self, session: Session, request: ExecRequest, on_stdout: OnText | None, on_stderr: OnText | None
    ) -> None:
        self.callbacks = {
            channel: callback
            for channel, callback in ((Channel.STDOUT, on_stdout), (Channel.STDERR, on_stderr))
            if callback is not None
        }
        self._session = session
        self._texts = TextDecoder()
        self._fold = ResultFold(request.exec_id, request.output_limit or MAX_OUTPUT_LIMIT_BYTES)
        self._result: ExecResult | None = None

    def dispatch(self, event: ExecEvent) -> Any:
        """Handle one event. Returns what the callback returned; await it if that is a coroutine."""
        self._result = self._fold.add(event) or self._result
        if not isinstance(event, Output):
            return None
        text = self._texts.decode(event)
        callback = self.callbacks.get(event.channel)
        return callback(text) if callback is not None and text else None

    def result(self) -> Result:
        """Return the result. Call this after the last event."""
        if self._result is None:
            raise SandlotError("The command's events ended without an exit event.", may_have_executed=True)
        return Result(replace(self._result, session_id=self._session.id, generation=self._session.generation))
