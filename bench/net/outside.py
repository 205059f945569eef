"""A web server on loopback, in its own process, in place of a host on the internet.

``/bytes/N`` answers with N bytes as fast as the reader takes them.
"""

from __future__ import annotations

import asyncio
import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection

PIECE = bytes(256 * 1024)


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            left = int(head.split(b" ")[1].rpartition(b"/")[2])
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % left)
            while left:
                writer.write(PIECE[:left])
                left -= min(left, len(PIECE))
                await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


def _serve(tell: Connection) -> None:
    async def forever() -> None:
        server = await asyncio.start_server(_answer, "127.0.0.1", 0, backlog=1024)
        tell.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(forever())


@contextmanager
def outside() -> Iterator[int]:
    """Yields the server's port."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_serve, args=(theirs,), daemon=True)
    process.start()
    try:
        if not ours.poll(30):
            raise TimeoutError("the web server did not start within 30 s")
        yield ours.recv()
    finally:
        process.terminate()
        process.join()
