"""A line between a browser and a server that a test cuts, holds and makes deaf. It concerns terminals alone."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field

from sandlot.testing.eventually import eventually

PIECE_BYTES = 64 * 1024
WITHIN_S = 20.0
_ATTACH = b"/attach?"


@dataclass(eq=False)
class _Call:
    """One terminal's connection."""

    page: asyncio.StreamWriter
    server: asyncio.StreamWriter
    # How much of the server's words still passes before it breaks.
    left: int | None = None
    # Without a word to either side.
    swallows_keys: bool = False
    swallows_output: bool = False

    def cut(self) -> None:
        for end in (self.page, self.server):
            end.transport.abort()


@dataclass(eq=False)
class Line:
    """A TCP proxy in front of a server on this machine: ``async with Line(port) as line``."""

    port: int
    url: str = ""
    cuts: int = 0
    _open: asyncio.Event = field(default_factory=asyncio.Event)
    _calls: set[_Call] = field(default_factory=set)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    async def __aenter__(self) -> Line:
        self._open.set()
        self._listener = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._listener.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._listener.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self) -> None:
        """Every terminal's connection, and none gets another one before ``mend``."""
        self._open.clear()
        for call in list(self._calls):
            self.cuts += 1
            call.cut()

    def cut_after(self, bytes_more: int) -> None:
        """The next connection may come at once."""
        for call in self._calls:
            call.left = bytes_more

    def mend(self) -> None:
        self._open.set()

    def swallow(self, *, keys: bool = False, output: bool = False) -> None:
        """What the connections of now pass no longer, without breaking. The next ones pass all."""
        for call in self._calls:
            call.swallows_keys, call.swallows_output = keys, output

    async def is_cut(self, times: int) -> None:
        await eventually(lambda: self.cuts >= times, WITHIN_S, "the connection is cut")

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with contextlib.suppress(OSError):
                await self._answer(reader, writer)
        finally:
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first = await reader.read(PIECE_BYTES)
        is_terminal = _ATTACH in first.partition(b"\r\n")[0]
        if is_terminal:
            await self._open.wait()
        server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self.port)
        call = _Call(writer, server_writer)
        if is_terminal:
            self._calls.add(call)
        server_writer.write(first)
        ways = [
            asyncio.create_task(_pass_keys(call, reader)),
            asyncio.create_task(self._pass_output(call, server_reader)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            self._calls.discard(call)
            server_writer.close()

    async def _pass_output(self, call: _Call, reader: asyncio.StreamReader) -> None:
        while data := await reader.read(PIECE_BYTES):
            if call.swallows_output:
                continue
            if call.left is not None:
                data, call.left = data[: call.left], call.left - len(data)
            call.page.write(data)
            await call.page.drain()
            if call.left is not None and call.left <= 0:
                self.cuts += 1
                return  # the end, and no reset, which would take with it what was not read yet


async def _pass_keys(call: _Call, reader: asyncio.StreamReader) -> None:
    while data := await reader.read(PIECE_BYTES):
        if not call.swallows_keys:
            call.server.write(data)
            await call.server.drain()
