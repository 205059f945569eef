"""Forwards in real sandboxes: a database outside is reached on a port inside, by the same policy."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from sandlot.client.async_session import AsyncSession
from sandlot.domain.errors import InvalidRequest
from sandlot.testing.directory_suite.redis_server import RedisServer, redis_server

pytestmark = [pytest.mark.docker, pytest.mark.asyncio(loop_scope="session")]

PING = "exec 3<>/dev/tcp/127.0.0.1/6379 && printf 'PING\\r\\n' >&3 && head -1 <&3"


@pytest.fixture
def redis() -> Iterator[RedisServer]:
    with redis_server() as server:
        yield server


async def test_a_database_is_reached_on_a_port_inside(
    session: AsyncSession, names: list[str], redis: RedisServer
) -> None:
    target = f"a.test:{redis.port}"
    with pytest.raises(InvalidRequest, match="is not allowed"):
        await session.network.forward(6379, target)
    assert not (await session.run(PING)).ok  # nothing listens there
    await session.network.allow(target)
    await session.network.forward(6379, target)
    assert (await session.run(PING)).stdout == "+PONG\r\n"
    for other in (6380, redis.port):
        refused = await session.run(f"exec 3<>/dev/tcp/127.0.0.1/{other}")
        assert "refused" in refused.output.lower()
    await session.network.revoke(target)
    denied = await session.run(f"{PING} | grep PONG")
    assert [each.target for each in denied.denied] == [target]
    await session.network.unforward(6379)
    assert "refused" in (await session.run(PING)).output.lower()


async def test_both_ends_of_a_connection(session: AsyncSession, names: list[str]) -> None:
    """The host speaks first, and hears the end of what the program sends."""

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"welcome\n")
        heard = await reader.read()
        writer.write(b"heard %d bytes\n" % len(heard))
        writer.close()

    server = await asyncio.start_server(greet, "127.0.0.1", 0)
    async with server:
        target = f"a.test:{server.sockets[0].getsockname()[1]}"
        await session.network.allow(target)
        await session.network.forward(7000, target)
        script = (
            "import socket; s = socket.create_connection(('127.0.0.1', 7000)); "
            "print(s.recv(100)); s.sendall(b'x' * 1000000); s.shutdown(socket.SHUT_WR); print(s.recv(100))"
        )
        result = await session.run(["python3", "-c", script])
        assert result.stdout == "b'welcome\\n'\nb'heard 1000000 bytes\\n'\n", result
