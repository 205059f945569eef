"""One connection to an agent: turns received bytes into frames, and sends encoded frames.

Only this module uses asyncio's transports. It reads straight into the decoder's buffer. It sends
everything from one turn of the event loop in one write. Two rules bound outgoing memory. Callers
that send bulk data wait for ``wait_writable``. A peer that makes the worker answer (PING, CREDIT)
but never reads loses the connection.

All sandboxes share one event loop, so no sandbox may fill it. A connection handles a limited number
of frames in one turn of the loop, and has an allowance of frames per second. Beyond either limit,
reading pauses: this peer waits, and all others are served.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Final, Protocol, cast

from sandlot.providers.link.allowance import Allowance
from sandlot.wire.frames import Frame, FrameDecoder, ProtocolViolation

HIGH_WATER_BYTES: Final = 256 * 1024  # above this many unsent bytes, senders of bulk data wait
# Two requests of the largest size, and some to spare. Above this, the worker hangs up.
MAX_UNSENT_BYTES: Final = 12 * 1024 * 1024
FLUSH_BYTES: Final = 64 * 1024  # the most that is held back until the next turn of the loop
MAX_FRAMES_PER_TURN: Final = 64  # handled in one turn of the loop; takes less than 1 ms
FRAMES_PER_S: Final = 10_000  # 655 MB/s of output, or a tenth of a core if the frames are tiny
FRAMES_BURST: Final = 5_000


class FrameReceiver(Protocol):
    """Handles what happens on a connection: the handshake at first, then the mux."""

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
        self._frames: Iterator[Frame] = iter(())  # received, not handled yet
        self._allowance = Allowance(per_s=FRAMES_PER_S, burst=FRAMES_BURST, now=self._loop.time())
        self._resume_handle: asyncio.Handle | None = None  # set while reading is paused
        self._outgoing: list[bytes] = []
        self._outgoing_bytes = 0
        self._flush_scheduled = False
        self._closed = False
        self._writable = asyncio.Event()
        self._writable.set()

    @property
    def writable(self) -> bool:
        return self._writable.is_set()

    async def wait_writable(self) -> None:
        """Waits until bulk data may be sent again, or until the connection is closed."""
        await self._writable.wait()

    def send(self, encoded: bytes) -> None:
        """Queues a frame without waiting. It leaves with all others from this turn of the loop."""
        if self._closed:
            return
        self._outgoing.append(encoded)
        self._outgoing_bytes += len(encoded)
        if self._outgoing_bytes >= FLUSH_BYTES:
            self._flush()
        elif not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self._run_scheduled_flush)

    def send_last(self, encoded: bytes) -> None:
        """Sends one last frame and hangs up. A peer that is not reading does not get it."""
        self.send(encoded)
        self._flush()
        transport = self._transport
        if transport is None or self._closed:
            return
        if transport.get_write_buffer_size():
            self.abort()
        else:
            self._closed = True
            transport.close()

    def abort(self) -> None:
        self._closed = True
        if self._resume_handle is not None:
            self._resume_handle.cancel()
        self._outgoing.clear()
        self._outgoing_bytes = 0
        self._writable.set()
        if self._transport is not None:
            self._transport.abort()

    def _run_scheduled_flush(self) -> None:
        self._flush_scheduled = False
        self._flush()

    def _flush(self) -> None:
        transport, outgoing = self._transport, self._outgoing
        if self._closed or not outgoing or transport is None:
            return
        encoded = outgoing[0] if len(outgoing) == 1 else b"".join(outgoing)
        outgoing.clear()
        self._outgoing_bytes = 0
        transport.write(encoded)
        if transport.get_write_buffer_size() > MAX_UNSENT_BYTES:
            self.abort()
            self.receiver.on_lost("the sandbox does not read")

    # called by asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=HIGH_WATER_BYTES)
        self.receiver.on_connected(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._decoder.free()

    def buffer_updated(self, nbytes: int) -> None:
        self._frames = self._decoder.received(nbytes)
        self._handle_frames()

    def _handle_frames(self) -> None:
        handled = 0
        try:
            for frame in self._frames:
                if self._closed:  # the previous frame may have closed the connection
                    return
                self.receiver.on_frame(frame)
                handled += 1
                if handled == MAX_FRAMES_PER_TURN:
                    break
        except ProtocolViolation as violation:
            self.receiver.on_violation(violation)
            return
        overdrawn_s = self._allowance.take(handled, self._loop.time())
        if overdrawn_s or handled == MAX_FRAMES_PER_TURN:
            self._pause_reading(overdrawn_s)
        elif self._resume_handle is not None:
            self._resume_handle = None
            assert self._transport is not None
            self._transport.resume_reading()

    def _pause_reading(self, seconds: float) -> None:
        if self._closed or self._transport is None:
            return
        if self._resume_handle is None:
            self._transport.pause_reading()
        # ``call_later(0)`` would work for both cases, but costs a heap operation per large answer.
        timer = self._loop.call_later(seconds, self._handle_frames) if seconds else None
        self._resume_handle = timer or self._loop.call_soon(self._handle_frames)

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._closed = True
        if self._resume_handle is not None:
            self._resume_handle.cancel()
        self._writable.set()
        self.receiver.on_lost(
            "the sandbox closed the connection" if exc is None else f"connection lost: {exc}"
        )
