"""Reads one exec over HTTP. A broken connection is replaced and continues at the next offset.

Nothing is read twice, and nothing is left out: a gap in the offsets is a gap in the server's own
ring. Input is different. The client cannot know how much of it arrived before a break, so it does
not resume writing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Final, Protocol

from sandlot.client.http.retries.rules import TRIES, OutageLimit, backoff, pause_before_retry
from sandlot.client.http.streams.event_streams import EventStream
from sandlot.domain.errors import LinkInterrupted, SandlotError, Unavailable
from sandlot.domain.execution import ExecEvent, ExecResult, Exited, Output, ResultFold, Started

STABLE_AFTER_S: Final = 5.0  # a stream that lasted this long shows that the server is up

Dial = Callable[[int], Awaitable[EventStream]]


class RerouteAfter(Protocol):
    async def __call__(self, error: SandlotError, *, repeatable: bool, again: bool) -> bool:
        """After a break, return whether to dial again at once because there is another route."""
        ...


class HttpExecution:
    """Implements ``Execution`` over HTTP."""

    def __init__(
        self,
        session_id: str,
        exec_id: str,
        redial: Dial,
        reroute_after: RerouteAfter,
        offset: int,
        open_executions: set[HttpExecution],
        outage_limit: OutageLimit,
    ) -> None:
        """``redial`` reconnects after a break, at an offset.

        ``open_executions``: contains this object until it has been read to the end or detached, so
        that closing the service can close it too.
        """
        self.loop = asyncio.get_running_loop()
        self._open_executions = open_executions
        self._session_id = session_id
        self._exec_id = exec_id
        self._redial = redial
        self._reroute_after = reroute_after
        self._outage_limit = outage_limit
        self._first_offset = self._next_offset = offset
        self._stream: EventStream | None = None
        self._earlier: HttpExecution | None = None
        self._events: AsyncIterator[ExecEvent] | None = None
        self._confirmed = self._iterated = self._detached = self._wrote = self._input_lost = False

    async def open(self, dial: Dial) -> None:
        """Connect, and return once the exec is known to run.

        A refusal is raised here, not to readers.
        """
        self._open_executions.add(self)
        try:
            await self._open(dial)
        except BaseException:
            self._open_executions.discard(self)
            raise

    async def _open(self, dial: Dial) -> None:
        tries = 0
        while self._events is None:
            tries += 1
            try:
                events = await self._dial(dial)
                first = await anext(events, None)
                if first is None:
                    raise LinkInterrupted("The server closed the stream before it confirmed the exec.")
                self._events = _prepend(first, events)
            except SandlotError as error:
                await self._close_stream()
                if self._detached:
                    raise
                if tries < TRIES and await self._reroute_after(error, repeatable=True, again=tries > 1):
                    continue
                pause = pause_before_retry(error, tries, repeatable=True)
                if pause is None:
                    raise
                await asyncio.sleep(pause)
            except BaseException:
                await self._close_stream()
                raise

    def fill_gaps_from(self, earlier: HttpExecution) -> None:
        """Read from an earlier reader what was already sent to it and is no longer kept."""
        assert self._events is not None
        self._earlier = earlier
        self._events = self._filled_from(earlier, self._events)

    async def _filled_from(
        self, earlier: HttpExecution, events: AsyncIterator[ExecEvent]
    ) -> AsyncIterator[ExecEvent]:
        async for event in events:
            if isinstance(event, Output) and event.offset > self._next_offset and self._earlier is not None:
                async for missed in earlier.events():
                    if isinstance(missed, Output):
                        yield missed
                    if self._next_offset >= event.offset:
                        break
            if not isinstance(event, Started):
                await self._detach_earlier()
            yield event

    async def _detach_earlier(self) -> None:
        earlier, self._earlier = self._earlier, None
        if earlier is not None:
            await earlier.detach()

    @property
    def exec_id(self) -> str:
        return self._exec_id

    async def events(self) -> AsyncIterator[ExecEvent]:
        if self._iterated:
            raise RuntimeError("events() can be iterated only once. Attach again to read the events again.")
        self._iterated = True
        outage_limit = self._outage_limit
        confirmed_at: float | None = self.loop.time()  # for the stream that is being read
        try:
            while True:
                try:
                    async for event in self._events or await self._dial_again():
                        confirmed_at = confirmed_at or self.loop.time()
                        unseen = self._unseen(event)
                        if unseen is not None:
                            outage_limit.reset()
                            yield unseen
                        if isinstance(event, Exited):
                            return
                    raise LinkInterrupted("The server closed the stream before the command ended.")
                except SandlotError as broken:
                    if self._detached:
                        return
                    if not isinstance(broken, LinkInterrupted | Unavailable):
                        # The exec was confirmed before, whatever this error says about this call.
                        broken.may_have_executed = True
                        raise
                    # A command may be silent for hours. If the stream lasted, the server is up.
                    if confirmed_at is not None and self.loop.time() - confirmed_at > STABLE_AFTER_S:
                        outage_limit.reset()
                    confirmed_at = None
                    # A caller that writes input cannot continue, so report the break soon.
                    if outage_limit.exceeded(broken, interactive=self._wrote):
                        raise self._gave_up(broken) from broken
                    await self._close_stream()
                    self._input_lost = self._input_lost or self._wrote
                    if not await self._reroute_after(broken, repeatable=True, again=outage_limit.breaks > 1):
                        await asyncio.sleep(backoff(outage_limit.breaks))
        finally:
            self._open_executions.discard(self)
            await self._close_stream()

    def _unseen(self, event: ExecEvent) -> ExecEvent | None:
        """Remove what was read before: bytes, and the ``Started`` that begins every stream."""
        if isinstance(event, Started):
            first, self._confirmed = not self._confirmed, True
            return event if first else None
        if isinstance(event, Exited):
            return event
        end = event.offset + len(event.data)
        seen = self._next_offset - event.offset
        if end <= self._next_offset:
            return None
        self._next_offset = end
        return event if seen <= 0 else Output(event.channel, event.offset + seen, event.data[seen:])

    async def _dial_again(self) -> AsyncIterator[ExecEvent]:
        if self._detached:
            raise LinkInterrupted("This reader is detached.")
        try:
            return await self._dial(self._redial)
        except SandlotError as error:
            error.may_have_executed = True  # the exec was confirmed before
            raise

    async def _dial(self, dial: Dial) -> AsyncIterator[ExecEvent]:
        stream = await dial(self._next_offset)
        if self._detached:  # while dialling
            await stream.close()
            raise LinkInterrupted("This reader is detached.")
        self._stream = stream
        return stream.events()

    def _gave_up(self, error: SandlotError) -> LinkInterrupted:
        return LinkInterrupted(
            f"{error.message.removesuffix('.')}. Exec {self._exec_id} keeps running. Attach to it "
            f"again from offset {self._next_offset}.",
            details={"exec_id": self._exec_id, "offset": self._next_offset},
        )

    async def result(self) -> ExecResult:
        fold = ResultFold(self._exec_id, offset=self._first_offset)
        async for event in self.events():
            if (result := fold.add(event)) is not None:
                return replace(result, session_id=self._session_id)
        raise LinkInterrupted("This reader was detached before the command ended.")

    # input, over the WebSocket

    async def write_stdin(self, data: bytes) -> None:
        self._wrote = True
        await self.send(data)

    async def close_stdin(self) -> None:
        await self.send('{"type":"stdin_end"}')

    async def send(self, message: bytes | str) -> None:
        if self._input_lost or self._stream is None:
            raise LinkInterrupted(
                "The connection broke, and some of the input may not have arrived. Attach to the exec "
                "again to continue writing."
            )
        await self._stream.send(message)

    async def detach(self) -> None:
        self._detached = True
        self._open_executions.discard(self)
        await self._close_stream()

    async def _close_stream(self) -> None:
        await self._detach_earlier()
        stream, self._stream, self._events = self._stream, None, None
        if stream is not None:
            await stream.close()


async def _prepend(first: ExecEvent, others: AsyncIterator[ExecEvent]) -> AsyncIterator[ExecEvent]:
    yield first
    async for event in others:
        yield event
