"""One call to the agent: opens a stream, reads its answer, and tells failures in the domain's words.

    with Call(link, mux, path) as call:
        await call.open({"op": "file.stat", "path": path})
        return await call.answer(parse_entry_answer)

Leaving the block lets go of the stream, however it is left. What the agent says wrongly closes its link.
A call that opens nothing only tells failures; that is how streams that outlive a call are used.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from types import TracebackType
from typing import Any, Final, TypeVar

from sandlot.domain.budget import hold, let_go, memory_of
from sandlot.domain.errors import LinkInterrupted
from sandlot.providers.link.link import AgentLink
from sandlot.providers.link.mux import Mux
from sandlot.providers.link.stream import Data, LinkClosed, Message, Stream, StreamReset
from sandlot.wire.frames import ProtocolViolation

ANSWER_TIMEOUT_S: Final = 30.0  # for small requests on the core link, which the agent answers from memory
MAX_ANSWER_BYTES: Final = 64 * 1024 * 1024  # of one collected answer, such as a walk of 100,000 entries

T = TypeVar("T")
Object = dict[str, Any]


class Call:
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
            self._mux.violated(problem)
        if self._stream is not None:
            self._stream.close()
        if isinstance(problem, (StreamReset, LinkClosed, ProtocolViolation)):
            raise self._link.explain(problem, self._path) from problem

    @property
    def stream(self) -> Stream:
        assert self._stream is not None, "open comes first"
        return self._stream

    async def open(self, request: Mapping[str, Any], *, end: bool = True, half_close: bool = False) -> Stream:
        self._stream = await self._mux.open(
            request, end=end, half_close=half_close, names=self._path is not None
        )
        return self._stream

    def keep(self) -> Stream:
        """The stream outlives this block: it is the caller's now."""
        stream, self._stream = self.stream, None
        return stream

    def take(self, stream: Stream) -> Call:
        """Goes on with a stream that an earlier block has kept."""
        self._stream = stream
        return self

    async def message(self) -> Object:
        """The next item, which has to be a message."""
        item = await self.stream.receive()
        if not isinstance(item, Message):
            raise ProtocolViolation("a message was due")
        return item.body

    async def end(self) -> None:
        if await self.stream.receive() is not None:
            raise ProtocolViolation("the answer goes on after its end")

    async def answer(self, parse: Callable[[Object], T]) -> T:
        """One message and the end."""
        value = parse(await self.message())
        await self.end()
        return value

    async def collect(self, parse: Callable[[Object], list[T]], most: int) -> tuple[list[T], Object]:
        """All messages to the end, and the last one's body; at most ``most`` values.

        They are on the account of who is being served, by the memory that they take: ``Busy`` when there is
        no room for more.
        """
        values: list[T] = []
        body: Object = {}
        total = held = 0
        try:
            while (item := await self.stream.receive()) is not None:
                if not isinstance(item, Message):
                    raise ProtocolViolation("a message was due")
                body = item.body
                more = parse(body)
                total += item.size
                if total > MAX_ANSWER_BYTES or len(values) + len(more) > most:
                    raise ProtocolViolation("an answer goes beyond its limit")
                size = memory_of(more)
                hold(size)
                held += size
                values += more
        except BaseException:
            let_go(held)  # it may be asked for once more
            raise
        return values, body

    async def piece(self, offset: int) -> bytes | Object:
        """The next bytes, which have to stand at ``offset``, or the message that follows the last of them."""
        item = await self.stream.receive()
        if isinstance(item, Data):
            if item.channel != 0 or item.offset != offset:
                raise ProtocolViolation("bytes are missing or out of order")
            return item.data
        if item is None:
            raise ProtocolViolation("the answer ended early")
        await self.end()
        return item.body


async def ask(link: AgentLink, request: Mapping[str, Any], parse: Callable[[Object], T]) -> T:
    """A small request on the core link."""
    return await _in_time(link, request, lambda call: call.answer(parse))


async def ask_for_all(
    link: AgentLink, request: Mapping[str, Any], parse: Callable[[Object], list[T]], most: int
) -> list[T]:
    """A small request on the core link, answered in one or more messages."""
    values, _ = await _in_time(link, request, lambda call: call.collect(parse, most))
    return values


async def _in_time(link: AgentLink, request: Mapping[str, Any], read: Callable[[Call], Awaitable[T]]) -> T:
    with Call(link, await link.core()) as call:
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                await call.open(request)
                return await read(call)
        except TimeoutError:
            raise LinkInterrupted(f"the agent did not answer within {ANSWER_TIMEOUT_S:g} s") from None
