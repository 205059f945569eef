"""Who reads for many reads only so much at once, and nothing small waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from sandlot.client.http.transport import connection as connection_module
from sandlot.client.http.transport.connection import LARGE_ANSWER_BYTES, Connection
from sandlot.domain.capacity.budget import ByteBudget
from sandlot.domain.errors import Busy, LinkInterrupted

SIZE = LARGE_ANSWER_BYTES
HEADS = {
    "/large": f"HTTP/1.1 200 OK\r\nContent-Length: {SIZE}\r\n\r\n",
    "/chunked": "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
    "/small": "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi",
    "/nothing": "HTTP/1.1 204 No Content\r\n\r\n",
}


class Slow:
    """Answers at once; the bodies that are large come when they may, after their first byte."""

    def __init__(self) -> None:
        self.url = ""
        self.may_come = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                path = head.split(b" ")[1].decode()
                writer.write(HEADS[path].encode())
                if path == "/large":
                    writer.write(b"x")
                    await self.may_come.wait()
                    writer.write(b"x" * (SIZE - 1))
                elif path == "/chunked":
                    await self.may_come.wait()
                    writer.write(b"2\r\nhi\r\n0\r\n\r\n")
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@pytest.fixture
async def slow() -> AsyncIterator[Slow]:
    slow = Slow()
    server = await asyncio.start_server(slow.serve, "127.0.0.1", 0)
    slow.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    yield slow
    slow.may_come.set()
    server.close()


@pytest.fixture
async def connection(slow: Slow) -> AsyncIterator[Connection]:
    connection = Connection(slow.url, large_answers=ByteBudget(SIZE))
    yield connection
    await connection.close()


async def begun(connection: Connection, path: str) -> asyncio.Task[tuple[int, bytes]]:
    """A call that has the whole budget, and whose body does not come."""
    reading = asyncio.create_task(connection.call_once("GET", path))
    async with asyncio.timeout(20):
        while connection._large_answers is None or not connection._large_answers._held:
            await asyncio.sleep(0.01)
    return reading


@pytest.mark.parametrize("path", ["/large", "/chunked"])
async def test_only_what_is_large_waits(
    connection: Connection, slow: Slow, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading = await begun(connection, path)
    assert await connection.call_once("GET", "/small") == (200, b"hi")
    assert await connection.call_once("DELETE", "/nothing") == (204, b"")
    monkeypatch.setattr(connection_module, "LARGE_BUDGET_WAIT_S", 0.1)
    with pytest.raises(Busy, match="fetched by its exec id"):
        await connection.call_once("GET", "/large")
    monkeypatch.setattr(connection_module, "LARGE_BUDGET_WAIT_S", 30.0)
    waiting = asyncio.create_task(connection.call_once("GET", path))
    await asyncio.sleep(0.05)
    slow.may_come.set()
    assert await reading == await waiting
    assert (await reading)[0] == 200


async def test_who_is_cancelled_gives_its_room_back(connection: Connection, slow: Slow) -> None:
    (await begun(connection, "/large")).cancel()
    slow.may_come.set()
    assert len((await connection.call_once("GET", "/large"))[1]) == SIZE


async def test_what_comes_too_slowly_is_given_up(
    connection: Connection, slow: Slow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "LARGE_READ_S", 0.1)
    monkeypatch.setattr(connection_module, "SLOWEST_BYTES_PER_S", 1e9)
    with pytest.raises(LinkInterrupted, match="did not arrive in time") as given_up:
        await connection.call_once("GET", "/large")
    assert given_up.value.may_have_executed
    monkeypatch.undo()  # a busy machine is slow too, and what it sends is awaited
    slow.may_come.set()
    assert len((await connection.call_once("GET", "/large"))[1]) == SIZE
