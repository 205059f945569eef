"""Heads that never end are refused, in time and in bytes; ordinary requests pass, one after the other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest
import pytest_asyncio
import uvicorn

from sandlot.api import create_app
from sandlot.api.edge import uvicorn_protocols as protocol
from sandlot.testing.fake import FakeService


@pytest_asyncio.fixture
async def port() -> AsyncIterator[int]:
    service = FakeService()
    config = uvicorn.Config(
        create_app(service), port=0, http=protocol.BoundedHttpProtocol, lifespan="off", log_config=None
    )
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    yield server.servers[0].sockets[0].getsockname()[1]
    server.should_exit = True
    await serving
    await service.close()


async def test_a_head_that_never_ends_in_time(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "HEAD_TIMEOUT_S", 1.5)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\n")
    for _ in range(3):
        await asyncio.sleep(0.1)
        writer.write(b"X-Slow: 1\r\n")
    answer = await asyncio.wait_for(reader.read(), 20)
    assert answer.startswith(b"HTTP/1.1 408 ")
    writer.close()


async def test_a_connection_that_says_nothing(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "HEAD_TIMEOUT_S", 0.2)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    assert (await asyncio.wait_for(reader.read(), 20)).startswith(b"HTTP/1.1 408 ")
    writer.close()


async def test_a_head_that_never_ends_in_bytes(port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-Long: ")
    answer = b""
    for _ in range(100):
        try:
            writer.write(b"a" * 4096)
            await writer.drain()
            answer = await asyncio.wait_for(reader.read(100), 0.01)
        except TimeoutError:
            continue
        except ConnectionError:
            break
        if answer:
            break
    assert answer.startswith(b"HTTP/1.1 431 ") or reader.at_eof()
    writer.close()


async def test_ordinary_requests_on_one_connection(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pause between requests is not a slow head, and a large body is not a large head."""
    monkeypatch.setattr(protocol, "HEAD_TIMEOUT_S", 0.3)
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as http:
        session = (await http.post("/v1/sessions", json={})).json()["id"]
        await asyncio.sleep(0.5)
        path = f"/v1/sessions/{session}/files/content"
        assert (await http.put(path, params={"path": "f"}, content=b"x" * 500_000)).status_code == 200
        await asyncio.sleep(0.5)
        assert len((await http.get(path, params={"path": "f"})).content) == 500_000


async def test_trailers_that_never_end(port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(
        b"POST /v1/sessions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n"
    )
    sent = 0
    try:
        while sent < 4 * 1024 * 1024:
            writer.write(b"X-Trailer: " + b"a" * 4000 + b"\r\n")
            await writer.drain()
            sent += 4013
            await asyncio.sleep(0)
    except ConnectionError:
        pass
    answer = await asyncio.wait_for(_read_all(reader), 20)
    assert sent < 4 * 1024 * 1024 or b" 431 " in answer
    writer.close()


async def _read_all(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read()
    except ConnectionError:
        return b""
