"""The mux carries many streams on one connection.

The worker's streams have odd ids and the agent's have even ids; both only grow. So an id alone
separates a finished stream (ignore the frame: it was already on its way) from one that was never
opened (a protocol violation). A violation closes the link. The mux reports it to the link's owner,
which decides what happens to the sandbox. Nothing here knows what the requests mean.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from sandlot.domain.errors import Busy, InvalidRequest
from sandlot.providers.link.allowance import Allowance
from sandlot.providers.link.connection import Connection
from sandlot.providers.link.stream import WINDOW_BYTES, LinkClosed, Stream
from sandlot.wire.agent_messages import parse_problem
from sandlot.wire.frames import (
    DATA_HEAD_BYTES,
    MAX_REQUEST_BYTES,
    Frame,
    Kind,
    ProtocolAbuse,
    ProtocolViolation,
    encode,
    encode_object,
    encode_request,
    encode_u64,
    parse_object,
    read_u32,
    read_u64,
)

MAX_STREAMS: Final = 4096  # open at once on one link, counting both sides
MAX_STREAM_ID: Final = 2**32 - 1
PING_INTERVAL_S: Final = 10.0
# Intervals that a ping may stay unanswered. So a frozen or throttled sandbox has 20 s.
MAX_MISSED_PINGS: Final = 2

# What an agent may do before it counts as abuse. The real agent never pings, answers each PING
# once, returns credit in half windows, and opens fewer than half as many streams.
NEEDLESS_PER_S: Final = 1
NEEDLESS_BURST: Final = 20
MIN_CREDIT_BYTES: Final = WINDOW_BYTES // 2
AGENT_STREAMS_PER_S: Final = 400
AGENT_STREAMS_BURST: Final = 1024
# Allowed for a finished stream beyond its credit: END, RESET and CREDIT frames on their way.
STRAY_BYTES: Final = 4096

_OPEN, _PART, _MESSAGE, _DATA, _CREDIT, _END, _RESET, _PING, _PONG = (
    Kind.OPEN,
    Kind.PART,
    Kind.MESSAGE,
    Kind.DATA,
    Kind.CREDIT,
    Kind.END,
    Kind.RESET,
    Kind.PING,
    Kind.PONG,
)

_FRAME_OVERHEAD_BYTES: Final = DATA_HEAD_BYTES  # what a frame costs in addition to its body


@dataclass(frozen=True, slots=True)
class MuxLimits:
    """``streams``: open at once, counting both sides. ``unread_bytes``: received and not read yet."""

    streams: int = MAX_STREAMS
    unread_bytes: int = MAX_STREAMS * WINDOW_BYTES


LIMITS: Final = MuxLimits()
# The agent accepts up to 1,024 connections at once; the others are the worker's. Unread bytes are
# those of 128 connections whose readers are slow.
NET_LIMITS: Final = MuxLimits(streams=2048, unread_bytes=128 * WINDOW_BYTES)


def refuse_every_stream(stream: Stream) -> None:
    stream.reset("unsupported", "the worker accepts no streams here")


class Mux:
    """One link's streams.

    The mux calls ``on_closed`` once, when the link closes. ``acceptor`` gets the agent's streams.
    """

    def __init__(
        self,
        connection: Connection,
        on_closed: Callable[[Mux, LinkClosed], None],
        limits: MuxLimits = LIMITS,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.acceptor: Callable[[Stream], None] = refuse_every_stream
        self.closed: LinkClosed | None = None
        self._connection = connection
        self._on_closed = on_closed
        self._limits = limits
        self._unread_bytes = 0
        self._streams: dict[int, Stream] = {}
        self._next_stream_id = 1
        self._last_agent_stream_id = 0
        self._parts = bytearray()
        self._parts_stream_id = 0  # the stream whose request is arriving in parts; 0 if none
        now = self.loop.time()
        self._needless_frames = Allowance(per_s=NEEDLESS_PER_S, burst=NEEDLESS_BURST, now=now)
        self._agent_streams = Allowance(per_s=AGENT_STREAMS_PER_S, burst=AGENT_STREAMS_BURST, now=now)
        self._stray_bytes = 0  # that may still arrive for finished streams
        self._ping = 0
        self._pings_missed = 0
        self._ping_answered = True
        self._ping_timer = self.loop.call_later(PING_INTERVAL_S, self._check_alive)
        connection.receiver = self

    async def open(
        self,
        request: Mapping[str, Any],
        *,
        end: bool = True,
        half_close: bool = False,
        names: bool = False,
    ) -> Stream:
        """Opens a stream with a request.

        ``end``: the worker sends nothing after the request. ``names``: the request has file names.
        """
        try:
            payload = encode_object(request, names=names)
        except ValueError as problem:
            raise InvalidRequest(f"The request is not valid Unicode text: {problem}") from None
        if len(payload) > MAX_REQUEST_BYTES:
            raise InvalidRequest(f"The request exceeds {MAX_REQUEST_BYTES} bytes.")
        while self.closed is None and not self.writable:
            await self.wait_writable()
        if self.closed is not None:
            raise self.closed.with_traceback(None)
        if len(self._streams) >= self._limits.streams:
            raise Busy(
                f"The limit of {self._limits.streams} concurrent requests in this sandbox is reached. "
                "Retry when one ends."
            )
        if self._next_stream_id > MAX_STREAM_ID:
            self.close("the link has used up its stream ids")
            return await self.open(request, names=names)  # raises, because the link is now closed
        stream = Stream(self, self._next_stream_id, request, half_close)
        self._next_stream_id += 2
        self._streams[stream.id] = stream
        self.send(encode_request(stream.id, payload))
        if end:
            stream.send_end()
        return stream

    def close(self, reason: str, violation: ProtocolViolation | None = None) -> None:
        """Closes the link and every stream on it, at once."""
        if self.closed is not None:
            return
        self.closed = closed = LinkClosed(reason, violation)
        self._ping_timer.cancel()
        self._parts.clear()
        for stream in list(self._streams.values()):
            stream.on_link_closed(closed)
        self._connection.abort()
        self._on_closed(self, closed)

    def close_for_violation(self, violation: ProtocolViolation) -> LinkClosed:
        """Closes the link because the agent broke a rule. Returns the exception to raise."""
        cause = (
            "protocol abuse"
            if isinstance(violation, ProtocolAbuse)
            else "the sandbox's agent broke the protocol"
        )
        self.close(f"{cause}: {violation}", violation)
        assert self.closed is not None
        return self.closed

    # called by streams

    @property
    def writable(self) -> bool:
        return self._connection.writable

    async def wait_writable(self) -> None:
        await self._connection.wait_writable()

    def send(self, encoded: bytes) -> None:
        self._connection.send(encoded)

    def count_unread(self, stream: Stream, size: int) -> None:
        """Counts bytes that a stream received, or that its reader took (negative)."""
        self._unread_bytes += size
        if self._unread_bytes > self._limits.unread_bytes:
            stream.reset("busy", "too many bytes of this sandbox wait for their readers")

    def forget(self, stream: Stream) -> None:
        if self._streams.pop(stream.id, None) is not None:
            self._stray_bytes += stream.receive_credit + STRAY_BYTES

    # called by the connection

    def on_connected(self, connection: Connection) -> None:
        raise AssertionError("a mux needs a connection that has finished its handshake")

    def on_lost(self, reason: str) -> None:
        self.close(reason)

    def on_violation(self, violation: ProtocolViolation) -> None:
        self.close_for_violation(violation)

    def on_frame(self, frame: Frame) -> None:
        stream_id, kind, body, channel, offset = frame
        if self._parts_stream_id and not (
            stream_id == self._parts_stream_id and (kind is _PART or kind is _OPEN)
        ):
            raise ProtocolViolation("a request in parts was interrupted")
        if stream_id == 0:
            self._on_link_frame(kind, body)
            return
        if kind is _OPEN or kind is _PART:
            self._on_request(stream_id, kind, body)
            return
        stream = self._streams.get(stream_id)
        if stream is None:
            if stream_id >= self._next_stream_id if stream_id & 1 else stream_id > self._last_agent_stream_id:
                raise ProtocolViolation(f"{kind.name} for stream {stream_id}, which was never opened")
            self._count_stray_frame(len(body))
            return
        if kind is _DATA:
            stream.on_data(channel, offset, body)
        elif kind is _MESSAGE:
            stream.on_message(body)
        elif kind is _CREDIT:
            amount = read_u32(body)
            if amount < MIN_CREDIT_BYTES:
                self._count_needless_frame()
            stream.on_credit(amount)
        elif kind is _END:
            stream.on_end()
        else:
            stream.on_reset(*parse_problem(parse_object(body)))

    def _count_stray_frame(self, size: int) -> None:
        """Counts a frame for a finished stream.

        Frames on their way cannot exceed the credit given.
        """
        self._stray_bytes -= size + _FRAME_OVERHEAD_BYTES
        if self._stray_bytes < 0:
            raise ProtocolAbuse("more data for ended streams than could be in flight")

    def _count_needless_frame(self) -> None:
        """Counts a needless frame.

        One costs little, but an endless supply would starve all others.
        """
        if self._needless_frames.take(1, self.loop.time()):
            raise ProtocolAbuse(f"more than {NEEDLESS_BURST} needless frames at once")

    def _on_link_frame(self, kind: Kind, body: bytes) -> None:
        if kind is _PING:
            self._count_needless_frame()
            self.send(encode(_PONG, 0, body))
        elif kind is _PONG:
            if self._ping_answered or read_u64(body) != self._ping:
                self._count_needless_frame()
            else:
                self._ping_answered = True
        else:
            raise ProtocolViolation(f"{kind.name} after the handshake")

    def _on_request(self, stream_id: int, kind: Kind, body: bytes) -> None:
        if stream_id & 1 or stream_id <= self._last_agent_stream_id:
            raise ProtocolViolation(f"the agent may not open stream {stream_id}")
        if len(self._parts) + len(body) > MAX_REQUEST_BYTES:
            raise ProtocolViolation("a request in parts is too large")
        self._parts += body
        self._parts_stream_id = stream_id
        if kind is _PART:
            return
        request = parse_object(bytes(self._parts), MAX_REQUEST_BYTES)
        self._parts.clear()
        self._parts_stream_id = 0
        self._last_agent_stream_id = stream_id
        if self._agent_streams.take(1, self.loop.time()):
            raise ProtocolAbuse(f"more than {AGENT_STREAMS_BURST} streams opened at once")
        stream = Stream(self, stream_id, request, half_close=True)
        self._streams[stream_id] = stream
        if len(self._streams) > self._limits.streams:
            stream.reset("busy", "too many streams are open")
        else:
            self.acceptor(stream)

    def _check_alive(self) -> None:
        """Pings the agent, and closes the link if too many pings stay unanswered.

        Even if the worker itself stalled, it has a whole interval between checks to read answers.
        """
        self._pings_missed = 0 if self._ping_answered else self._pings_missed + 1
        if self._pings_missed >= MAX_MISSED_PINGS:
            self.close("the agent does not answer")
            return
        if self._ping_answered:
            self._ping += 1
            self._ping_answered = False
            self.send(encode_u64(_PING, self._ping))
        self._ping_timer = self.loop.call_later(PING_INTERVAL_S, self._check_alive)
