"""Output handed to functions while a command runs."""

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


class Texts:
    """Pieces of output as pieces of text: a character that the way cut in two is handed over whole.

    Behind a gap, reading begins anew: half a character before it and half of another behind it must not
    become a third.
    """

    def __init__(self) -> None:
        self._decoders = {channel: codecs.getincrementaldecoder("utf-8")("replace") for channel in Channel}
        self._halves = dict.fromkeys(Channel, "")  # what a gap left behind, until its channel goes on
        self._next = 0

    def of(self, event: Output) -> str:
        if event.offset > self._next:
            for channel, decoder in self._decoders.items():
                self._halves[channel] += decoder.decode(b"", final=True)
        self._next = event.offset + len(event.data)
        half, self._halves[event.channel] = self._halves[event.channel], ""
        return half + self._decoders[event.channel].decode(event.data)


class Followed:
    """A command's events: their text goes to the callbacks as it comes, and all of them make the result."""

    def __init__(
        self, session: Session, request: ExecRequest, on_stdout: OnText | None, on_stderr: OnText | None
    ) -> None:
        self.callbacks = {
            channel: callback
            for channel, callback in ((Channel.STDOUT, on_stdout), (Channel.STDERR, on_stderr))
            if callback is not None
        }
        self._session = session
        self._texts = Texts()
        self._fold = ResultFold(request.exec_id, request.output_limit or MAX_OUTPUT_LIMIT_BYTES)
        self._result: ExecResult | None = None

    def see(self, event: ExecEvent) -> Any:
        """What the callback returned, which for an ``async def`` is to be awaited."""
        self._result = self._fold.add(event) or self._result
        if not isinstance(event, Output):
            return None
        text = self._texts.of(event)
        callback = self.callbacks.get(event.channel)
        return callback(text) if callback is not None and text else None

    def result(self) -> Result:
        """After the last event."""
        if self._result is None:
            raise SandlotError("the command's events ended without its exit", may_have_executed=True)
        return Result(replace(self._result, session_id=self._session.id, generation=self._session.generation))
