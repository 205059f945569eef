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


class Followed:
    """A command's events: their text goes to the callbacks as it comes, and all of them make the result.

    A character that the way cut in two is handed over whole.
    """

    def __init__(
        self, session: Session, request: ExecRequest, on_stdout: OnText | None, on_stderr: OnText | None
    ) -> None:
        self.callbacks = {
            channel: callback
            for channel, callback in ((Channel.STDOUT, on_stdout), (Channel.STDERR, on_stderr))
            if callback is not None
        }
        self._session = session
        self._decoders = {channel: codecs.getincrementaldecoder("utf-8")("replace") for channel in Channel}
        self._fold = ResultFold(request.exec_id, request.output_limit or MAX_OUTPUT_LIMIT_BYTES)
        self._result: ExecResult | None = None

    def see(self, event: ExecEvent) -> Any:
        """What the callback returned, which for an ``async def`` is to be awaited."""
        self._result = self._fold.add(event) or self._result
        if not isinstance(event, Output) or event.channel not in self.callbacks:
            return None
        text = self._decoders[event.channel].decode(event.data)
        return self.callbacks[event.channel](text) if text else None

    def result(self) -> Result:
        """After the last event."""
        if self._result is None:
            raise SandlotError("the command's events ended without its exit", may_have_executed=True)
        return Result(replace(self._result, session_id=self._session.id, generation=self._session.generation))
