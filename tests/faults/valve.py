"""A valve between a server and its engine: it can be cut, and it can meddle with the creating of containers.

The engine itself never notices. What is held back here is what a slow, cut or failing connection would hold back.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from pathlib import Path

MACHINES_SOCKET = "/var/run/docker.sock"
PIECE_BYTES = 256 * 1024
REASON = b'{"message":"Conflict: the name is already in use"}'
CONFLICT = b"HTTP/1.1 409 Conflict\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (
    len(REASON),
    REASON,
)


class Valve:
    """``creates_late_by``: seconds that a create is held before the engine gets it, whoever still waits.

    ``answers_late_by``: seconds that the engine's answer to a create is held: it is done, and not told.

    ``conflicts``: every create is answered with 409 and never reaches the engine.
    """

    def __init__(self, engine: str = MACHINES_SOCKET) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="sandlot-test-valve-")
        self.host = f"unix://{self.folder.name}/docker.sock"
        self.creates_late_by = 0.0
        self.answers_late_by = 0.0
        self.conflicts = False
        self.creates = 0
        self.made = 0  # as the engine has answered, whoever is told of it
        self.most_at_once = 0
        self._engine = engine
        self._making = 0
        self._server: asyncio.Server | None = None
        self._lines: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        path = self.host.removeprefix("unix://")
        Path(path).unlink(missing_ok=True)
        self._server = await asyncio.start_unix_server(self._serve, path)

    async def cut(self) -> None:
        """All connections end, and there are no new ones until it is opened again."""
        assert self._server is not None
        self._server.close()
        for line in self._lines:
            line.cancel()
        if self._lines:
            await asyncio.wait(set(self._lines))

    async def clean(self) -> None:
        await self.cut()
        self.folder.cleanup()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._lines.add(task)
        task.add_done_callback(self._lines.discard)
        to_engine = None
        try:
            from_engine, to_engine = await asyncio.open_unix_connection(self._engine)
            making = asyncio.Event()
            forth = asyncio.create_task(self._forth(reader, to_engine, writer, making))
            back = asyncio.create_task(self._back(from_engine, writer, making))
            try:
                await asyncio.wait({forth, back}, return_when=asyncio.FIRST_COMPLETED)
                # A client that gave up has still asked: the engine is not told that nobody waits for it.
                while making.is_set() and not back.done():
                    await asyncio.sleep(0.05)
            finally:
                for half in (forth, back):
                    half.cancel()
                await asyncio.wait({forth, back})
                self._made(making)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            for end in (writer, to_engine):
                if end is not None:
                    end.close()

    async def _forth(
        self,
        reader: asyncio.StreamReader,
        engine: asyncio.StreamWriter,
        client: asyncio.StreamWriter,
        making: asyncio.Event,
    ) -> None:
        with contextlib.suppress(OSError):
            while piece := await reader.read(PIECE_BYTES):
                if piece.startswith(b"POST") and b"/containers/create" in piece.partition(b"\r\n")[0]:
                    self.creates += 1
                    if self.conflicts:
                        await self._swallow(reader, piece)
                        client.write(CONFLICT)
                        continue
                    making.set()
                    self._making += 1
                    self.most_at_once = max(self.most_at_once, self._making)
                    await asyncio.sleep(self.creates_late_by)
                engine.write(piece)
                await engine.drain()

    async def _swallow(self, reader: asyncio.StreamReader, piece: bytes) -> None:
        head, _, body = piece.partition(b"\r\n\r\n")
        length = next(
            int(line.split(b":")[1])
            for line in head.split(b"\r\n")
            if line.lower().startswith(b"content-length:")
        )
        while len(body) < length:
            body += await reader.read(PIECE_BYTES)

    async def _back(
        self, engine: asyncio.StreamReader, client: asyncio.StreamWriter, making: asyncio.Event
    ) -> None:
        with contextlib.suppress(OSError):
            while piece := await engine.read(PIECE_BYTES):
                if making.is_set():
                    self.made += piece.startswith(b"HTTP/1.1 201")
                    await asyncio.sleep(self.answers_late_by)
                self._made(making)
                client.write(piece)
                await client.drain()

    def _made(self, making: asyncio.Event) -> None:
        if making.is_set():
            making.clear()
            self._making -= 1
