"""One call to the agent: opens a stream, reads its answer, and raises failures as domain errors.

    with Call(link, mux, path) as call:
        await call.open({"op": "file.stat", "path": path})
        return await call.answer(parse_entry_answer)

Leaving the block always releases the stream. An answer that breaks the protocol closes the link.
A call that opens no stream only translates failures; use one for a stream that outlives its call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from types import TracebackType
from typing import Any, Final, TypeVar

from sandlot.domain.capacity.budget import hold, memory_of, release
from sandlot.domain.errors import LinkInterrupted
from sandlot.providers.link.link import AgentLink
from sandlot.providers.link.mux import Mux
from sandlot.providers.link.stream import Data, LinkClosed, Message, Stream, StreamReset
from sandlot.wire.frames import ProtocolViolation

ANSWER_TIMEOUT_S: Final = 30.0  # for small core-link requests; the agent answers them from memory
MAX_ANSWER_BYTES: Final = 64 * 1024 * 1024  # one collected answer, e.g. a walk of 100,000 entries

T = TypeVar("T")
JsonObject = dict[str, Any]


class Call:
    """One call, used as a context manager. ``path`` is the file that the call is about, if any."""

    __slots__ = ("_link", "_mux", "_path", "_stream")

    def __init__(self, link: AgentLink, mux: Mux, path: str | None = None) -> None:
        self._link = link
        self._mux = mux
        self._path = path
        self._stream: Stream | None = None

    def __enter__(self) -> Call:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if isinstance(problem, ProtocolViolation):
            self._mux.close_for_violation(problem)
        if self._stream is not None:
            self._stream.close()
        if isinstance(problem, (StreamReset, LinkClosed, ProtocolViolation)):
            raise self._link.error_for(problem, self._path) from problem

    @property
    def stream(self) -> Stream:
        assert self._stream is not None, "call open() first"
        return self._stream

    async def open(self, request: Mapping[str, Any], *, end: bool = True, half_close: bool = False) -> Stream:
        self._stream = await self._mux.open(
            request, end=end, half_close=half_close, names=self._path is not None
        )
        return self._stream

    def detach_stream(self) -> Stream:
        """Hands the stream to the caller, so that it outlives this block."""
        stream, self._stream = self.stream, None
        return stream

    def attach_stream(self, stream: Stream) -> Call:
        """Continues with a stream that an earlier block handed over."""
        self._stream = stream
        return self

    async def next_message(self) -> JsonObject:
        """Returns the body of the next item, which must be a message."""
        item = await self.stream.receive()
        if not isinstance(item, Message):
            raise ProtocolViolation("expected a message")
        return item.body

    async def expect_end(self) -> None:
        if await self.stream.receive() is not None:
            raise ProtocolViolation("the answer continues after its end")

    async def answer(self, parse: Callable[[JsonObject], T]) -> T:
        """Reads one message and the end of the stream."""
        value = parse(await self.next_message())
        await self.expect_end()
        return value

    async def collect(
        self, parse: Callable[[JsonObject], list[T]], max_values: int
    ) -> tuple[list[T], JsonObject]:
        """Reads all messages. Returns up to ``max_values`` values, and the last message's body.

        Charges the memory of the values to the budget of the request being served. Raises ``Busy``
        when the budget has no room for more.
        """
        values: list[T] = []
        body: JsonObject = {}
        total = held_bytes = 0
        try:
            while (item := await self.stream.receive()) is not None:
                if not isinstance(item, Message):
                    raise ProtocolViolation("expected a message")
                body = item.body
                more = parse(body)
                total += item.size
                if total > MAX_ANSWER_BYTES or len(values) + len(more) > max_values:
                    raise ProtocolViolation("an answer exceeds its limit")
                size = memory_of(more)
                hold(size)
                held_bytes += size
                values += more
        except BaseException:
            release(held_bytes)  # the caller may ask again
            raise
        return values, body

    async def next_chunk(self, offset: int) -> bytes | JsonObject:
        """Returns the next bytes, which must start at ``offset``, or the message after the last."""
        item = await self.stream.receive()
        if isinstance(item, Data):
            if item.channel != 0 or item.offset != offset:
                raise ProtocolViolation("bytes are missing or out of order")
            return item.data
        if item is None:
            raise ProtocolViolation("the answer ended early")
        await self.expect_end()
        return item.body


async def ask(link: AgentLink, request: Mapping[str, Any], parse: Callable[[JsonObject], T]) -> T:
    """Makes a small request on the core link and returns its answer."""
    return await _with_timeout(link, request, lambda call: call.answer(parse))


async def ask_for_list(
    link: AgentLink, request: Mapping[str, Any], parse: Callable[[JsonObject], list[T]], max_values: int
) -> list[T]:
    """Makes a small request on the core link that is answered in one or more messages."""
    values, _ = await _with_timeout(link, request, lambda call: call.collect(parse, max_values))
    return values


async def _with_timeout(
    link: AgentLink, request: Mapping[str, Any], read: Callable[[Call], Awaitable[T]]
) -> T:
    with Call(link, await link.core()) as call:
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                await call.open(request)
                return await read(call)
        except TimeoutError:
            raise LinkInterrupted(f"The sandbox did not answer within {ANSWER_TIMEOUT_S:g} s.") from None
