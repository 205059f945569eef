"""A proxy that cuts connections in the middle of an answer."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

# What becomes of the n-th connection (from 0): None passes all; a number of bytes of the answer passes that many
# and cuts.
Cuts = Callable[[int], int | None]


class CuttingProxy:
    """In front of a server on this machine."""

    def __init__(self, port: int, cuts: Cuts) -> None:
        self._port = port
        self._cuts = cuts
        self._tasks: set[asyncio.Task[None]] = set()
        self.connections = 0
        self.cut = 0
        self.writers: list[asyncio.StreamWriter] = []
        self.url = ""

    async def __aenter__(self) -> CuttingProxy:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        left = self._cuts(self.connections)
        self.connections += 1
        self.writers.append(writer)
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self._port)
        asking = asyncio.create_task(_pass(reader, up_writer))
        try:
            while data := await up_reader.read(1024):
                if left is not None:
                    data, left = data[:left], left - len(data)
                writer.write(data)
                await writer.drain()
                if left is not None and left <= 0:
                    self.cut += 1
                    return
        except OSError:
            pass
        finally:
            asking.cancel()
            for end in (writer, up_writer):
                with contextlib.suppress(OSError):
                    await asyncio.sleep(0)
                    end.transport.abort() if left is not None and left <= 0 else end.close()


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
