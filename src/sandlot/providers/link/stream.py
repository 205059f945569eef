"""A stream: one request and what follows it, in both directions, within credit.

A stream never buffers more than the credit that it gave, and never sends more than it was given. What the
agent has sent before it ended, reset or lost the stream is still delivered; the end is told after it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from sandlot.wire.frames import (
    DATA_HEAD_BYTES,
    MAX_DATA_BYTES,
    Kind,
    ProtocolViolation,
    encode,
    encode_credit,
    encode_data,
    encode_end,
    encode_object,
    parse_object,
)

if TYPE_CHECKING:
    from sandlot.providers.link.mux import Mux

WINDOW_BYTES: Final = 262_144  # credit with which each side of a stream starts
GRANT_BYTES: Final = WINDOW_BYTES // 2  # consumed this much → give it back in one CREDIT
MAX_CREDIT_BYTES: Final = 2**31
_LEAST_MESSAGE_BYTES: Final = 2  # "{}"; a message that cost nothing could be queued without bound


class Message(NamedTuple):
    body: dict[str, Any]
    size: int  # bytes on the wire: readers that collect answers bound them by it


class Data(NamedTuple):
    channel: int
    offset: int
    data: bytes


class LinkClosed(Exception):
    """The link is over, and all its streams with it. ``violation``: the rule that the agent broke, if any."""

    def __init__(self, reason: str, violation: ProtocolViolation | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.violation = violation


class StreamReset(Exception):
    """The stream is over before its time; ``code`` is one of the protocol's."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message


class Stream:
    """``half_close``: the agent's END leaves our direction open, as on a socket. Else it ends the stream."""

    __slots__ = (
        "_allowed",
        "_consumed",
        "_credit",
        "_credit_given",
        "_failure",
        "_half_close",
        "_queue",
        "_sent",
        "_waiter",
        "_we_ended",
        "id",
        "mux",
        "over",
        "peer_ended",
        "request",
    )

    def __init__(self, mux: Mux, stream_id: int, request: Mapping[str, Any], half_close: bool) -> None:
        self.mux = mux
        self.id = stream_id
        self.request = request
        self.over = False
        self.peer_ended = False
        self._half_close = half_close
        self._we_ended = False
        self._failure: StreamReset | LinkClosed | None = None
        self._queue: deque[bytes | Data] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._allowed = WINDOW_BYTES  # what the agent may still send
        self._consumed = 0  # taken from the queue and not yet given back as credit
        self._credit = WINDOW_BYTES  # what we may still send
        self._credit_given: asyncio.Event | None = None
        self._sent = 0  # bytes of DATA, for offsets

    @property
    def credit_left(self) -> int:
        """Bytes that the agent may still send."""
        return self._allowed

    # the application's side

    async def receive(self) -> Message | Data | None:
        """The next item; None at the agent's END. One reader at a time."""
        while not self._queue:
            if self.peer_ended:
                return None
            if self._failure is not None:
                raise self._failure.with_traceback(None)
            if self._waiter is not None:
                raise RuntimeError("a stream has one reader")
            self._waiter = self.mux.loop.create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        item = self._queue.popleft()
        if isinstance(item, Data):
            self._give_back(DATA_HEAD_BYTES + len(item.data))
            return item
        self._give_back(len(item))
        try:
            return Message(parse_object(item), len(item))
        except ProtocolViolation as violation:
            raise self.mux.violated(violation) from violation

    async def send_data(self, data: bytes | memoryview, channel: int = 0) -> None:
        rest = memoryview(data)
        while rest:
            await self._until_sendable(DATA_HEAD_BYTES + 1)
            piece = rest[: min(MAX_DATA_BYTES, self._credit - DATA_HEAD_BYTES)]
            self._credit -= DATA_HEAD_BYTES + len(piece)
            self.mux.send(encode_data(self.id, channel, self._sent, piece))
            self._sent += len(piece)
            rest = rest[len(piece) :]

    def send_end(self) -> None:
        if self.over or self._we_ended:
            return
        self._we_ended = True
        self.mux.send(encode_end(self.id))
        if self.peer_ended:
            self._finish()

    def reset(self, code: str, message: str) -> None:
        """Ends the stream for both sides; what is still queued is dropped."""
        if self.over:
            return
        self.mux.send(encode(Kind.RESET, self.id, encode_object({"code": code, "message": message})))
        self._queue.clear()
        self._failure = StreamReset(code, message)
        self._finish()

    def close(self) -> None:
        """Lets go of the stream, whatever its state: no reader may leave one behind."""
        self._queue.clear()
        if not self.over:
            self.reset("cancelled", "the worker lets go")

    # the mux's side

    def on_data(self, channel: int, offset: int, data: bytes) -> None:
        self._spend(DATA_HEAD_BYTES + len(data))
        self._queue.append(Data(channel, offset, data))
        self._wake()

    def on_message(self, payload: bytes) -> None:
        if len(payload) < _LEAST_MESSAGE_BYTES:
            raise ProtocolViolation("a message is empty")
        self._spend(len(payload))
        self._queue.append(payload)
        self._wake()

    def on_credit(self, amount: int) -> None:
        self._credit += amount
        if self._credit > MAX_CREDIT_BYTES:
            raise ProtocolViolation("more credit than a stream can have")
        if self._credit_given is not None:
            self._credit_given.set()

    def on_end(self) -> None:
        if self.peer_ended:
            raise ProtocolViolation("a second END")
        self.peer_ended = True
        if not self._half_close and not self._we_ended:
            self._failure = StreamReset("gone", "the agent has ended the stream")
            self.send_end()
        elif self._we_ended:
            self._finish()
        self._wake()

    def on_reset(self, code: str, message: str) -> None:
        self.peer_ended = False  # an END before it no longer tells how the stream ended
        self._failure = StreamReset(code, message)
        self._finish()

    def on_link_closed(self, closed: LinkClosed) -> None:
        if not self.peer_ended or self._half_close:
            self._failure = closed
        self._finish()

    # both

    def _spend(self, size: int) -> None:
        if self.peer_ended:
            raise ProtocolViolation("more was sent after END")
        self._allowed -= size
        if self._allowed < 0:
            raise ProtocolViolation("more was sent than credit allows")

    def _give_back(self, size: int) -> None:
        self._consumed += size
        if self._consumed >= GRANT_BYTES and not self.peer_ended and not self.over:
            self._allowed += self._consumed
            self.mux.send(encode_credit(self.id, self._consumed))
            self._consumed = 0

    async def _until_sendable(self, size: int) -> None:
        while True:
            if self._failure is not None:
                raise self._failure.with_traceback(None)
            if self.over or self._we_ended:
                raise StreamReset("gone", "the stream has ended")
            if self._credit < size:
                if self._credit_given is None:
                    self._credit_given = asyncio.Event()
                self._credit_given.clear()
                await self._credit_given.wait()
            elif not self.mux.writable:
                await self.mux.drained()
            else:
                return

    def _finish(self) -> None:
        self.over = True
        self.mux.forget(self)
        self._wake()
        if self._credit_given is not None:
            self._credit_given.set()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
