"""Bounded pipes between the fake's commands, and the notifier that they wait on.

A test may destroy a sandbox from its own thread, so ``notify`` works from any thread.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

PIPE_BYTES = 64 * 1024


class Notifier:
    """Wakes all waiters. Each waiter then checks its own condition again."""

    def __init__(self) -> None:
        self._waiters: list[asyncio.Future[None]] = []

    async def wait(self) -> None:
        future = asyncio.get_running_loop().create_future()
        self._waiters.append(future)
        await future

    def notify(self) -> None:
        waiters, self._waiters = self._waiters, []
        for future in waiters:
            if not future.get_loop().is_closed():
                future.get_loop().call_soon_threadsafe(_wake, future)


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class BrokenPipe(Exception):
    """The reader is gone. Ends the command that writes, as SIGPIPE does."""


class Sink(Protocol):
    async def write(self, data: bytes) -> None: ...


class Source(Protocol):
    async def read(self, max_bytes: int = PIPE_BYTES) -> bytes:
        """Returns empty bytes at the end of the data."""
        ...


class Pipe:
    """Both ends of a pipe. A writer waits while the pipe is full."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._notifier = Notifier()
        self._no_reader = False
        self.closed = False

    async def write(self, data: bytes) -> None:
        while len(self._data) >= PIPE_BYTES and not self._no_reader:
            await self._notifier.wait()
        if self._no_reader:
            raise BrokenPipe
        self._data += data
        self._notifier.notify()

    def fill(self, data: bytes) -> None:
        """Writes without waiting for room, because the writer holds all data in memory anyway."""
        self._data += data
        self._notifier.notify()

    async def read(self, max_bytes: int = PIPE_BYTES) -> bytes:
        while not self._data and not self.closed:
            await self._notifier.wait()
        data = bytes(self._data[:max_bytes])
        del self._data[:max_bytes]
        self._notifier.notify()
        return data

    def close(self) -> None:
        """Ends the input: nothing more will be written."""
        self.closed = True
        self._notifier.notify()

    def stop_reading(self) -> None:
        self._no_reader = True
        self._notifier.notify()


class Bytes:
    """A source of fixed data, empty by default."""

    def __init__(self, data: bytes = b"") -> None:
        self._data = data

    async def read(self, max_bytes: int = PIPE_BYTES) -> bytes:
        data, self._data = self._data[:max_bytes], self._data[max_bytes:]
        return data


class Buffer:
    """A sink that keeps all data written to it."""

    def __init__(self) -> None:
        self.data = bytearray()

    async def write(self, data: bytes) -> None:
        self.data += data
