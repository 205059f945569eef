"""A stream: one request and all data and messages that follow it, in both directions.

Credit bounds a stream both ways. It never buffers more bytes than the credit it gave, and never
sends more than the credit it received. The reader still gets everything that the agent sent before
the stream ended, was reset or lost its link; only then does the reader learn how the stream ended.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, Protocol

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

WINDOW_BYTES: Final = 262_144  # each side of a stream starts with this much credit
GRANT_BYTES: Final = WINDOW_BYTES // 2  # after reading this much, return it in one CREDIT
MAX_CREDIT_BYTES: Final = 2**31
_MIN_MESSAGE_BYTES: Final = 2  # "{}"; messages that cost no credit could queue up without bound


class Message(NamedTuple):
    body: dict[str, Any]
    size: int  # bytes on the wire; readers that collect answers use it to bound them


class Data(NamedTuple):
    channel: int
    offset: int
    data: bytes


class LinkClosed(Exception):
    """The link and all its streams are closed.

    ``violation`` is the protocol rule that the agent broke, if it broke one.
    """

    def __init__(self, reason: str, violation: ProtocolViolation | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.violation = violation


class StreamReset(Exception):
    """The stream ended early. ``code`` is one of the protocol's reset codes."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message


class StreamMux(Protocol):
    """What a stream needs from the mux that carries it.

    ``mux.Mux`` implements it. ``mux`` imports this module, so this module cannot import ``mux``.
    """

    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...

    @property
    def writable(self) -> bool: ...

    async def wait_writable(self) -> None: ...

    def send(self, encoded: bytes) -> None: ...

    def close_for_violation(self, violation: ProtocolViolation) -> LinkClosed: ...

    def forget(self, stream: Stream) -> None: ...

    def count_unread(self, stream: Stream, size: int) -> None: ...


class Stream:
    """One stream on a link.

    With ``half_close``, the agent's END leaves the worker's direction open, as on a socket.
    Otherwise it ends the stream.
    """

    __slots__ = (
        "_consumed",
        "_credit_received",
        "_failure",
        "_half_close",
        "_local_ended",
        "_queue",
        "_receive_credit",
        "_send_credit",
        "_sent_bytes",
        "_unread_bytes",
        "_waiter",
        "finished",
        "id",
        "mux",
        "peer_ended",
        "request",
    )

    def __init__(self, mux: StreamMux, stream_id: int, request: Mapping[str, Any], half_close: bool) -> None:
        self.mux = mux
        self.id = stream_id
        self.request = request
        self.finished = False
        self.peer_ended = False
        self._half_close = half_close
        self._local_ended = False
        self._failure: StreamReset | LinkClosed | None = None
        self._queue: deque[bytes | Data] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._receive_credit = WINDOW_BYTES  # bytes that the agent may still send
        self._unread_bytes = 0  # in the queue
        self._consumed = 0  # bytes taken from the queue and not yet returned as credit
        self._send_credit = WINDOW_BYTES  # bytes that the worker may still send
        self._credit_received: asyncio.Event | None = None
        self._sent_bytes = 0  # in DATA frames; the offset of the next one

    @property
    def receive_credit(self) -> int:
        """Bytes that the agent may still send."""
        return self._receive_credit

    # called by readers and writers of the stream

    async def receive(self) -> Message | Data | None:
        """Returns the next item, or None at the agent's END. Allows one reader at a time."""
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
            self._return_credit(DATA_HEAD_BYTES + len(item.data))
            return item
        self._return_credit(len(item))
        try:
            return Message(parse_object(item), len(item))
        except ProtocolViolation as violation:
            raise self.mux.close_for_violation(violation) from violation

    async def send_data(self, data: bytes | memoryview, channel: int = 0) -> None:
        remaining = memoryview(data)
        while remaining:
            await self._wait_sendable(DATA_HEAD_BYTES + 1)
            chunk = remaining[: min(MAX_DATA_BYTES, self._send_credit - DATA_HEAD_BYTES)]
            self._send_credit -= DATA_HEAD_BYTES + len(chunk)
            self.mux.send(encode_data(self.id, channel, self._sent_bytes, chunk))
            self._sent_bytes += len(chunk)
            remaining = remaining[len(chunk) :]

    def send_end(self) -> None:
        if self.finished or self._local_ended:
            return
        self._local_ended = True
        self.mux.send(encode_end(self.id))
        if self.peer_ended:
            self._finish()

    def reset(self, code: str, message: str) -> None:
        """Ends the stream for both sides and drops everything still queued."""
        if self.finished:
            return
        self.mux.send(encode(Kind.RESET, self.id, encode_object({"code": code, "message": message})))
        self._drop_queue()
        self._failure = StreamReset(code, message)
        self._finish()

    def close(self) -> None:
        """Releases the stream in any state.

        Every reader must call this, so that no stream leaks.
        """
        self._drop_queue()
        if not self.finished:
            self.reset("cancelled", "the worker lets go")

    # called by the mux

    def on_data(self, channel: int, offset: int, data: bytes) -> None:
        self._use_receive_credit(DATA_HEAD_BYTES + len(data))
        self._queue.append(Data(channel, offset, data))
        self._count_unread(DATA_HEAD_BYTES + len(data))
        self._wake_reader()

    def on_message(self, payload: bytes) -> None:
        if len(payload) < _MIN_MESSAGE_BYTES:
            raise ProtocolViolation("a message is empty")
        self._use_receive_credit(len(payload))
        self._queue.append(payload)
        self._count_unread(len(payload))
        self._wake_reader()

    def on_credit(self, amount: int) -> None:
        self._send_credit += amount
        if self._send_credit > MAX_CREDIT_BYTES:
            raise ProtocolViolation("more credit than a stream can have")
        if self._credit_received is not None:
            self._credit_received.set()

    def on_end(self) -> None:
        if self.peer_ended:
            raise ProtocolViolation("a second END")
        self.peer_ended = True
        if not self._half_close and not self._local_ended:
            self._failure = StreamReset("gone", "the agent has ended the stream")
            self.send_end()
        elif self._local_ended:
            self._finish()
        self._wake_reader()

    def on_reset(self, code: str, message: str) -> None:
        self.peer_ended = False  # the RESET replaces an earlier END as the way the stream ended
        self._failure = StreamReset(code, message)
        self._finish()

    def on_link_closed(self, closed: LinkClosed) -> None:
        if not self.peer_ended or self._half_close:
            self._failure = closed
        self._finish()

    # shared by both sides

    def _use_receive_credit(self, size: int) -> None:
        if self.peer_ended:
            raise ProtocolViolation("more was sent after END")
        self._receive_credit -= size
        if self._receive_credit < 0:
            raise ProtocolViolation("more was sent than credit allows")

    def _count_unread(self, size: int) -> None:
        self._unread_bytes += size
        self.mux.count_unread(self, size)

    def _drop_queue(self) -> None:
        self._queue.clear()
        self._count_unread(-self._unread_bytes)

    def _return_credit(self, size: int) -> None:
        self._count_unread(-size)
        self._consumed += size
        if self._consumed >= GRANT_BYTES and not self.peer_ended and not self.finished:
            self._receive_credit += self._consumed
            self.mux.send(encode_credit(self.id, self._consumed))
            self._consumed = 0

    async def _wait_sendable(self, size: int) -> None:
        while True:
            if self._failure is not None:
                raise self._failure.with_traceback(None)
            if self.finished or self._local_ended:
                raise StreamReset("gone", "the stream has ended")
            if self._send_credit < size:
                if self._credit_received is None:
                    self._credit_received = asyncio.Event()
                self._credit_received.clear()
                await self._credit_received.wait()
            elif not self.mux.writable:
                await self.mux.wait_writable()
            else:
                return

    def _finish(self) -> None:
        self.finished = True
        self.mux.forget(self)
        self._wake_reader()
        if self._credit_received is not None:
            self._credit_received.set()

    def _wake_reader(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
