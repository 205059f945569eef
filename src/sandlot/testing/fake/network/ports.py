"""Ports of the fake's sandboxes: a test serves them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from sandlot.domain.computer import ByteStream
from sandlot.domain.errors import SandlotError
from sandlot.domain.network.ports import nothing_listens_error
from sandlot.testing.fake.pipes import BrokenPipe, Pipe

Server = Callable[[ByteStream], Awaitable[None]]


class StreamEnd(ByteStream):
    """One end of a connection inside the fake. Implements ``ByteStream``."""

    def __init__(self, incoming: Pipe, outgoing: Pipe) -> None:
        self._incoming = incoming
        self._outgoing = outgoing
        self._error: SandlotError | None = None  # why it was broken off, if it was

    async def receive(self) -> bytes:
        data = await self._incoming.read()
        if self._error is not None:
            raise self._error
        return data

    async def send(self, data: bytes) -> None:
        try:
            await self._outgoing.write(data)
        except BrokenPipe:
            raise self._error or ConnectionResetError("the other side is gone") from None

    async def send_end(self) -> None:
        self._outgoing.close()

    def abort(self) -> None:
        self._incoming.stop_reading()
        self._outgoing.close()

    def end(self, error: SandlotError) -> None:
        """Break the connection off, on both ends."""
        self._error = error
        for pipe in (self._incoming, self._outgoing):
            pipe.stop_reading()
            pipe.close()


class FakePorts:
    """The ports of one sandbox: what serves them, and the open connections."""

    def __init__(self) -> None:
        self._servers: dict[int, Server] = {}
        self._visited: dict[StreamEnd, int | None] = {}  # which port it is a visitor's connection to, if any
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._visited)

    def serve(self, port: int, server: Server) -> None:
        self._servers[port] = server

    def connect(self, port: int, *, for_visitor: bool) -> ByteStream:
        server = self._servers.get(port)
        if server is None:
            raise nothing_listens_error(port)
        inward, outward = Pipe(), Pipe()
        outside, inside = StreamEnd(outward, inward), StreamEnd(inward, outward)

        async def serving() -> None:
            try:
                with suppress(SandlotError, OSError):
                    await server(inside)
            finally:
                self._visited.pop(outside, None)
                inside.abort()

        task = asyncio.get_running_loop().create_task(serving(), name=f"fake port {port}")
        self._visited[outside] = port if for_visitor else None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return outside

    def end(self, error: SandlotError, *, visitors_of: int | None = None) -> None:
        """End all connections, or those of visitors to one port."""
        for stream, visited in list(self._visited.items()):
            if visitors_of is None or visited == visitors_of:
                stream.end(error)
