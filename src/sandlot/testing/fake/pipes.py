"""What flows between the fake's commands: bytes with a bound on what waits, and a bell to wait for.

A bell may be rung from another thread than the one that waits: tests lose sandboxes from theirs.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

PIPE_BYTES = 64 * 1024


class Bell:
    """Wakes all who wait. Who waits looks again at what it waits for."""

    def __init__(self) -> None:
        self._waiting: list[asyncio.Future[None]] = []

    async def wait(self) -> None:
        future = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        await future

    def ring(self) -> None:
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.get_loop().is_closed():
                future.get_loop().call_soon_threadsafe(_wake, future)


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class BrokenPipe(Exception):
    """Nobody reads any more. Ends the command that writes, as SIGPIPE does."""


class Sink(Protocol):
    async def write(self, data: bytes) -> None: ...


class Source(Protocol):
    async def read(self, most: int = PIPE_BYTES) -> bytes:
        """Empty bytes at the end."""
        ...


class Pipe:
    """Both ends in one; who writes waits while it is full."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._bell = Bell()
        self._no_reader = False
        self.closed = False

    async def write(self, data: bytes) -> None:
        while len(self._data) >= PIPE_BYTES and not self._no_reader:
            await self._bell.wait()
        if self._no_reader:
            raise BrokenPipe
        self._data += data
        self._bell.ring()

    def fill(self, data: bytes) -> None:
        """Without waiting for room: its writer has it all in memory anyway."""
        self._data += data
        self._bell.ring()

    async def read(self, most: int = PIPE_BYTES) -> bytes:
        while not self._data and not self.closed:
            await self._bell.wait()
        data = bytes(self._data[:most])
        del self._data[:most]
        self._bell.ring()
        return data

    def close(self) -> None:
        """No more will be written."""
        self.closed = True
        self._bell.ring()

    def stop_reading(self) -> None:
        self._no_reader = True
        self._bell.ring()


class Bytes:
    """A source of what is known already; by default of nothing."""

    def __init__(self, data: bytes = b"") -> None:
        self._data = data

    async def read(self, most: int = PIPE_BYTES) -> bytes:
        data, self._data = self._data[:most], self._data[most:]
        return data


class Buffer:
    """A sink that keeps what it gets."""

    def __init__(self) -> None:
        self.data = bytearray()

    async def write(self, data: bytes) -> None:
        self.data += data
