"""A server with previews on a port of its own, the fake service behind it, and a program inside on loopback."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import h11
import httpx
from tests.service.served import served_app

from sandlot.api import create_app
from sandlot.api.previews.options import PreviewOptions
from sandlot.domain.computer import ByteStream
from sandlot.domain.network.ports import ExposePort, Preview
from sandlot.domain.network.preview_links import LinkTokens, PreviewDomain
from sandlot.domain.session import CreateSession
from sandlot.testing import FakeService

KEY = "key-of-the-tests"
PORT = 7000
SECONDS = 20.0  # tells slow from never
DOMAIN = PreviewDomain.parse("http://*.preview.test")

Script = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Program:
    """What listens inside. It answers each request with ``answer``, and keeps what it was asked."""

    answer: bytes = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-type: text/plain\r\n\r\nhi"
    script: Script | None = None
    heads: list[h11.Request] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    raw: list[bytearray] = field(default_factory=list)
    open: int = 0

    @property
    def last(self) -> dict[str, str]:
        """The headers of the last request, where each comes once."""
        pairs = [(name.decode(), value.decode()) for name, value in self.heads[-1].headers]
        assert len(dict(pairs)) == len(pairs), pairs
        return dict(pairs)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        try:
            await (self.script or self._answer)(reader, writer)
        finally:
            self.open -= 1
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received = bytearray()
        self.raw.append(received)
        server, body = h11.Connection(h11.SERVER), b""
        while not isinstance(event := server.next_event(), h11.EndOfMessage):
            if event is h11.NEED_DATA:
                data = await reader.read(65536)
                received += data
                server.receive_data(data)
            elif isinstance(event, h11.Request):
                self.heads.append(event)
            elif isinstance(event, h11.Data):
                body += bytes(event.data)
            else:
                return
        self.bodies.append(body)
        writer.write(self.answer)
        await writer.drain()


@dataclass
class Rig:
    service: FakeService
    url: str
    options: PreviewOptions
    program: Program
    session_id: str
    client: httpx.AsyncClient

    async def expose(self, port: int = PORT, **how: Any) -> Preview:
        """As the API does it."""
        answer = await self.client.put(
            f"{self.url}/v1/sessions/{self.session_id}/ports/{port}",
            json=how,
            headers={"Authorization": f"Bearer {KEY}"},
        )
        assert answer.status_code == 200, answer.text
        body = answer.json()
        exposure = next(one for one in await self.service.list_exposed(self.session_id) if one.port == port)
        return Preview(exposure, body["url"], body["prefix"], body["expires_at"])

    async def raw(self, data: bytes) -> bytes:
        """What the server answers to these bytes, until it closes."""
        host, port = self.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            writer.write(data)
            async with asyncio.timeout(SECONDS):
                return await reader.read()
        finally:
            writer.close()

    @property
    def host(self) -> str:
        """The preview's own host."""
        return DOMAIN.origin(self.session_id, PORT).removeprefix("http://")

    async def visit(self, path: str = "/", method: str = "GET", **options: Any) -> httpx.Response:
        """Ask the preview's own host, without cookies of earlier visits."""
        headers = {"Host": self.host, **options.pop("headers", {})}
        async with httpx.AsyncClient(timeout=SECONDS) as client:
            return await client.request(method, self.url + path, headers=headers, **options)


@contextlib.asynccontextmanager
async def rigged(
    *, domain: PreviewDomain | None = None, clock: Callable[[], float] | None = None, **options: Any
) -> AsyncIterator[Rig]:
    service, program = FakeService(), Program()
    tokens = LinkTokens(b"s" * 32, **({} if clock is None else {"clock": clock}))
    chosen = PreviewOptions(tokens, domain, **options)
    inside = await asyncio.start_server(program.serve, "127.0.0.1", 0)
    inside_port = inside.sockets[0].getsockname()[1]

    async def bridge(stream: ByteStream) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", inside_port)

        async def inward() -> None:
            while data := await stream.receive():
                writer.write(data)
                await writer.drain()
            writer.write_eof()

        sending = asyncio.create_task(inward())
        try:
            while data := await reader.read(65536):
                await stream.send(data)
            await stream.send_end()
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
            writer.close()

    session = (await service.create_session(CreateSession())).session
    service.serve_port(session.id, PORT, bridge)
    app = create_app(service, api_key=KEY, allowed_hosts=None, previews=chosen)
    async with inside, served_app(app) as url, httpx.AsyncClient(timeout=SECONDS) as client:
        yield Rig(service, url, chosen, program, session.id, client)
    await service.close()


async def exposed_id(rig: Rig, *, public: bool = False) -> str:
    preview = await rig.service.expose_port(rig.session_id, ExposePort(PORT, public=public))
    return preview.exposure.id
