"""A web server on loopback, in its own process, in place of a host on the internet.

``/bytes/N`` answers with N bytes as fast as the reader takes them.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

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


async def _serve() -> None:
    server = await asyncio.start_server(_answer, "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


@contextmanager
def outside() -> Iterator[int]:
    """Yields the server's port."""
    with subprocess.Popen([sys.executable, __file__], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline())
        finally:
            process.kill()


if __name__ == "__main__":
    asyncio.run(_serve())
