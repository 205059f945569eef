"""One reader's hold on an exec over HTTP. A connection that breaks is replaced, at the next offset.

What was read is not read again, and nothing is left out; a jump in the offsets is one that the server's own
ring had. Input is another matter: how much of it arrived before a break nobody knows, so it is not resumed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Final, Protocol

from sandlot.client.http.lines import Line
from sandlot.client.http.retries import TRIES, Patience, backoff, pause_before_retry
from sandlot.domain.errors import LinkInterrupted, SandlotError, Unavailable
from sandlot.domain.execution import ExecEvent, ExecResult, Exited, Output, ResultFold, Started

STOOD_S: Final = 5.0

Dial = Callable[[int], Awaitable[Line]]


class Turn(Protocol):
    async def __call__(self, error: SandlotError, *, repeatable: bool, again: bool) -> bool:
        """After what was dialled broke: whether to dial at once, because there is another way now."""
        ...


class HttpExecution:
    """Implements ``Execution``."""

    def __init__(
        self,
        session_id: str,
        exec_id: str,
        redial: Dial,
        turn: Turn,
        offset: int,
        held: set[HttpExecution],
        patience: Patience,
    ) -> None:
        """``held``: where it stands until it is read to its end or left, so that somebody can close it."""
        self.loop = asyncio.get_running_loop()
        self._held = held
        self._session_id = session_id
        self._exec_id = exec_id
        self._redial = redial
        self._turn = turn
        self._patience = patience
        self._begin = self._next = offset
        self._line: Line | None = None
        self._earlier: HttpExecution | None = None
        self._events: AsyncIterator[ExecEvent] | None = None
        self._confirmed = self._iterated = self._detached = self._wrote = self._input_lost = False

    async def open(self, dial: Dial) -> None:
        """Returns when the exec is known to run, so that a refusal is told here and not to a reader."""
        self._held.add(self)
        try:
            await self._open(dial)
        except BaseException:
            self._held.discard(self)
            raise

    async def _open(self, dial: Dial) -> None:
        tries = 0
        while self._events is None:
            tries += 1
            try:
                events = await self._dial(dial)
                first = await anext(events, None)
                if first is None:
                    raise LinkInterrupted("the server ended the stream before the exec was confirmed")
                self._events = _after(first, events)
            except SandlotError as error:
                await self._hang_up()
                if self._detached:
                    raise
                if tries < TRIES and await self._turn(error, repeatable=True, again=tries > 1):
                    continue
                pause = pause_before_retry(error, tries, repeatable=True)
                if pause is None:
                    raise
                await asyncio.sleep(pause)
            except BaseException:
                await self._hang_up()
                raise

    def follow(self, earlier: HttpExecution) -> None:
        """What was on its way to an earlier reader, and is not kept any more, is read from that one."""
        assert self._events is not None
        self._earlier = earlier
        self._events = self._following(earlier, self._events)

    async def _following(
        self, earlier: HttpExecution, events: AsyncIterator[ExecEvent]
    ) -> AsyncIterator[ExecEvent]:
        async for event in events:
            if isinstance(event, Output) and event.offset > self._next and self._earlier is not None:
                async for missed in earlier.events():
                    if isinstance(missed, Output):
                        yield missed
                    if self._next >= event.offset:
                        break
            if not isinstance(event, Started):
                await self._leave_earlier()
            yield event

    async def _leave_earlier(self) -> None:
        earlier, self._earlier = self._earlier, None
        if earlier is not None:
            await earlier.detach()

    @property
    def exec_id(self) -> str:
        return self._exec_id

    async def events(self) -> AsyncIterator[ExecEvent]:
        if self._iterated:
            raise RuntimeError("an execution's events are read once; attach for another reading")
        self._iterated = True
        patience = self._patience
        confirmed_at: float | None = self.loop.time()  # of the line that is read now
        try:
            while True:
                try:
                    async for event in self._events or await self._dial_again():
                        confirmed_at = confirmed_at or self.loop.time()
                        fresh = self._fresh(event)
                        if fresh is not None:
                            patience.renew()
                            yield fresh
                        if isinstance(event, Exited):
                            return
                    raise LinkInterrupted("the server ended the stream before the exec had ended")
                except SandlotError as broken:
                    if self._detached:
                        return
                    if not isinstance(broken, LinkInterrupted | Unavailable):
                        # It was confirmed before there was anything to read, whatever is said of this call.
                        broken.may_have_executed = True
                        raise
                    # A command may be silent for hours. A line that stood shows that the server is there.
                    if confirmed_at is not None and self.loop.time() - confirmed_at > STOOD_S:
                        patience.renew()
                    confirmed_at = None
                    # Who typed cannot go on typing, and is told soon.
                    if patience.over(broken, hurried=self._wrote):
                        raise self._given_up(broken) from broken
                    await self._hang_up()
                    self._input_lost = self._input_lost or self._wrote
                    if not await self._turn(broken, repeatable=True, again=patience.breaks > 1):
                        await asyncio.sleep(backoff(patience.breaks))
        finally:
            self._held.discard(self)
            await self._hang_up()

    def _fresh(self, event: ExecEvent) -> ExecEvent | None:
        """The event, without what was read before: bytes, and the confirmation that begins every line."""
        if isinstance(event, Started):
            first, self._confirmed = not self._confirmed, True
            return event if first else None
        if isinstance(event, Exited):
            return event
        end = event.offset + len(event.data)
        seen = self._next - event.offset
        if end <= self._next:
            return None
        self._next = end
        return event if seen <= 0 else Output(event.channel, event.offset + seen, event.data[seen:])

    async def _dial_again(self) -> AsyncIterator[ExecEvent]:
        if self._detached:
            raise LinkInterrupted("this reader is detached")
        try:
            return await self._dial(self._redial)
        except SandlotError as error:
            error.may_have_executed = True  # it was confirmed, whatever became of it since
            raise

    async def _dial(self, dial: Dial) -> AsyncIterator[ExecEvent]:
        line = await dial(self._next)
        if self._detached:  # meanwhile
            await line.close()
            raise LinkInterrupted("this reader is detached")
        self._line = line
        return line.events()

    def _given_up(self, error: SandlotError) -> LinkInterrupted:
        return LinkInterrupted(
            f"{error.message}; exec {self._exec_id} goes on without us: attach to it again from"
            f" offset {self._next}",
            details={"exec_id": self._exec_id, "offset": self._next},
        )

    async def result(self) -> ExecResult:
        fold = ResultFold(self._exec_id, offset=self._begin)
        async for event in self.events():
            if (result := fold.add(event)) is not None:
                return replace(result, session_id=self._session_id)
        raise LinkInterrupted("this reader was detached before the exec had ended")

    # input, as the WebSocket carries it

    async def write_stdin(self, data: bytes) -> None:
        self._wrote = True
        await self.send(data)

    async def close_stdin(self) -> None:
        await self.send('{"type":"stdin_end"}')

    async def send(self, message: bytes | str) -> None:
        if self._input_lost or self._line is None:
            raise LinkInterrupted(
                "the connection broke, and how much of the input arrived is not known; attach to the exec"
                " again to go on writing"
            )
        await self._line.send(message)

    async def detach(self) -> None:
        self._detached = True
        self._held.discard(self)
        await self._hang_up()

    async def _hang_up(self) -> None:
        await self._leave_earlier()
        line, self._line, self._events = self._line, None, None
        if line is not None:
            await line.close()


async def _after(first: ExecEvent, others: AsyncIterator[ExecEvent]) -> AsyncIterator[ExecEvent]:
    yield first
    async for event in others:
        yield event
