"""The proxy's byte streams to hosts outside."""

from __future__ import annotations

import asyncio
import ssl
from typing import Final

from sandlot.domain.errors import SandlotError
from sandlot.providers.base import ByteStream

# Read and sent at once. Also bounds what is in memory: each direction of a connection holds one piece, and
# twice as much in buffers.
PIECE_BYTES: Final = 128 * 1024

# What the other end of a stream, inside or outside, can do to it.
BROKEN: Final = (OSError, SandlotError)


class HostProblem(Exception):
    """A request cannot be answered: the host cannot be reached, or does not answer as it should. ``status``:
    what the program gets instead."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class HostStream(ByteStream):
    """Implements ``ByteStream`` on a TCP connection to a host outside. With TLS, ``send_end`` is not for it:
    HTTP says where a request ends."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def connect(
        cls, address: str, port: int, tls: ssl.SSLContext | None = None, name: str | None = None
    ) -> HostStream:
        """``name``: whose certificate the host must show, if it speaks TLS."""
        opened = asyncio.open_connection(address, port, limit=PIECE_BYTES, ssl=tls, server_hostname=name)
        return cls(*await opened)

    async def receive(self) -> bytes:
        return await self._reader.read(PIECE_BYTES)

    async def send(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def send_end(self) -> None:
        """Returns when the system has taken all that was sent, so that ``close`` drops nothing."""
        if not self._writer.is_closing():
            self._writer.write_eof()
            self._writer.transport.set_write_buffer_limits(high=0)
            await self._writer.drain()

    def abort(self) -> None:
        """Ends at once: bytes that the host has not taken yet would otherwise keep the connection open."""
        self._writer.transport.abort()
