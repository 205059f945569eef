"""One connection: bytes in, frames out, and the other way round.

The only module here that knows asyncio's transports. Reading goes straight into the decoder's buffer. What
is written in one turn of the loop leaves in one write. Outgoing memory is bounded twice: whoever sends bulk
waits for ``drained``, and a peer that makes us answer (PING, CREDIT) without ever reading loses the
connection.

All sandboxes share one event loop, so none may fill it. A connection handles a share of frames in one turn of
the loop, and has an allowance of frames per second. Beyond either, reading pauses: the peer waits, and
everybody else is served.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Final, Protocol, cast

from sandlot.providers.link.allowance import Allowance
from sandlot.wire.frames import Frame, FrameDecoder, ProtocolViolation

HIGH_WATER_BYTES: Final = 256 * 1024  # unsent bytes above which senders of bulk wait
MAX_UNSENT_BYTES: Final = (
    12 * 1024 * 1024
)  # two requests of the largest size and room to spare; then we hang up
FLUSH_BYTES: Final = 64 * 1024  # held back for one turn of the loop at most this much
TURN_FRAMES: Final = 64  # handled in one turn of the loop: less than a millisecond
FRAMES_PER_S: Final = 10_000  # 655 MB of output a second, or a tenth of a core if the frames are tiny
FRAMES_BURST: Final = 5_000


class FrameReceiver(Protocol):
    """Who is told what happens on a connection: first the handshake, then the mux."""

    def on_connected(self, connection: Connection) -> None: ...

    def on_frame(self, frame: Frame) -> None: ...

    def on_violation(self, violation: ProtocolViolation) -> None: ...

    def on_lost(self, reason: str) -> None: ...


class Connection(asyncio.BufferedProtocol):
    def __init__(self, receiver: FrameReceiver) -> None:
        self.receiver = receiver
        self._decoder = FrameDecoder()
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._frames: Iterator[Frame] = iter(())  # received and not handled yet
        self._allowance = Allowance(per_s=FRAMES_PER_S, burst=FRAMES_BURST, now=self._loop.time())
        self._next_turn: asyncio.Handle | None = None  # set while reading is paused
        self._outgoing: list[bytes] = []
        self._outgoing_bytes = 0
        self._flush_planned = False
        self._over = False
        self._writable = asyncio.Event()
        self._writable.set()

    @property
    def writable(self) -> bool:
        return self._writable.is_set()

    async def drained(self) -> None:
        """Returns when bulk may be sent again, or when the connection is over."""
        await self._writable.wait()

    def send(self, encoded: bytes) -> None:
        """Never waits; it leaves with all else that is sent in this turn of the loop."""
        if self._over:
            return
        self._outgoing.append(encoded)
        self._outgoing_bytes += len(encoded)
        if self._outgoing_bytes >= FLUSH_BYTES:
            self._flush()
        elif not self._flush_planned:
            self._flush_planned = True
            self._loop.call_soon(self._flush_as_planned)

    def send_last(self, encoded: bytes) -> None:
        """Says one more thing and hangs up. A peer that does not read it in time does not get it."""
        self.send(encoded)
        self._flush()
        transport = self._transport
        if transport is None or self._over:
            return
        if transport.get_write_buffer_size():
            self.abort()
        else:
            self._over = True
            transport.close()

    def abort(self) -> None:
        self._over = True
        if self._next_turn is not None:
            self._next_turn.cancel()
        self._outgoing.clear()
        self._outgoing_bytes = 0
        self._writable.set()
        if self._transport is not None:
            self._transport.abort()

    def _flush_as_planned(self) -> None:
        self._flush_planned = False
        self._flush()

    def _flush(self) -> None:
        transport, outgoing = self._transport, self._outgoing
        if self._over or not outgoing or transport is None:
            return
        encoded = outgoing[0] if len(outgoing) == 1 else b"".join(outgoing)
        outgoing.clear()
        self._outgoing_bytes = 0
        transport.write(encoded)
        if transport.get_write_buffer_size() > MAX_UNSENT_BYTES:
            self.abort()
            self.receiver.on_lost("the agent does not read")

    # asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=HIGH_WATER_BYTES)
        self.receiver.on_connected(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._decoder.free()

    def buffer_updated(self, nbytes: int) -> None:
        self._frames = self._decoder.received(nbytes)
        self._take_turn()

    def _take_turn(self) -> None:
        handled = 0
        try:
            for frame in self._frames:
                if self._over:  # also when the frame before this one ended it
                    return
                self.receiver.on_frame(frame)
                handled += 1
                if handled == TURN_FRAMES:
                    break
        except ProtocolViolation as violation:
            self.receiver.on_violation(violation)
            return
        overdrawn_s = self._allowance.take(handled, self._loop.time())
        if overdrawn_s or handled == TURN_FRAMES:
            self._pause_reading(overdrawn_s)
        elif self._next_turn is not None:
            self._next_turn = None
            assert self._transport is not None
            self._transport.resume_reading()

    def _pause_reading(self, seconds: float) -> None:
        if self._over or self._transport is None:
            return
        if self._next_turn is None:
            self._transport.pause_reading()
        # ``call_later(0)`` would do for both, but is a heap's work on every large answer.
        plan = self._loop.call_later(seconds, self._take_turn) if seconds else None
        self._next_turn = plan or self._loop.call_soon(self._take_turn)

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._over = True
        if self._next_turn is not None:
            self._next_turn.cancel()
        self._writable.set()
        self.receiver.on_lost("the agent's connection ended" if exc is None else f"connection lost: {exc}")
