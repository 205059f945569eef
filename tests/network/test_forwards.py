"""Forwards in real sandboxes: a database outside is reached on a port inside, by the same policy."""

from __future__ import annotations

import asyncio
import io
import os
import shutil
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandlot.client.async_session import AsyncSession
from sandlot.domain.errors import InvalidRequest
from sandlot.testing.directory_suite.redis_server import RedisServer, free_port, redis_server

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


PROGRAMS = Path("/usr/lib/postgresql")


def packed_psql(programs: Path) -> bytes:
    """The machine's psql with all that it links to, its loader included: the images have none."""
    listed = subprocess.run(["ldd", programs / "psql"], capture_output=True, text=True, check=True).stdout
    libraries = [word for line in listed.splitlines() for word in line.split() if word.startswith("/")]
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for path in (programs / "psql", *map(Path, libraries)):
            archive.add(path.resolve(), f"psql/{path.name}")
    return packed.getvalue()


@pytest.fixture(scope="module")
def postgresql() -> Iterator[tuple[int, Path]]:
    """A PostgreSQL of this module alone. Gives its port, and the folder of its programs."""
    found = sorted(PROGRAMS.glob("*/bin/initdb"))
    if not found:
        pytest.skip("PostgreSQL is not installed")
    programs, folder = found[-1].parent, Path(tempfile.mkdtemp(prefix="sandlot-test-postgres-"))
    port, user = free_port(), "nobody" if os.getuid() == 0 else None  # it refuses to run as root
    if user is not None:
        shutil.chown(folder, user)
    data = folder / "data"
    try:
        subprocess.run(
            [programs / "initdb", "-D", data, "-U", "tester", "-A", "trust", "--no-sync"],
            user=user, check=True, capture_output=True, timeout=120,
        )  # fmt: skip
        options = ("-p", str(port), "-k", str(folder), "-h", "127.0.0.1", "-F")
        server = subprocess.Popen(
            [programs / "postgres", "-D", data, *options],
            user=user, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            deadline = time.monotonic() + 60
            ready = [programs / "pg_isready", "-q", "-h", "127.0.0.1", "-p", str(port)]
            while subprocess.run(ready, check=False).returncode != 0:
                assert time.monotonic() < deadline, "PostgreSQL does not answer"
                time.sleep(0.05)
            yield port, programs
        finally:
            server.terminate()
            server.wait(30)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def test_postgresql(session: AsyncSession, names: list[str], postgresql: tuple[int, Path]) -> None:
    port, programs = postgresql
    target = f"a.test:{port}"
    await session.files.write("psql.tar", packed_psql(programs))
    assert (await session.run("tar -xf psql.tar")).ok
    psql = "psql/ld-linux-* --library-path psql psql/psql -X -A -t -v ON_ERROR_STOP=1 -U tester -d postgres"
    await session.network.allow(target)
    await session.network.forward(5432, target)
    script = (
        "create temporary table numbers as select generate_series(1, 100000) as number; "
        "select sum(number) from numbers; \\copy numbers to numbers.txt"
    )
    result = await session.run(f"{psql} -h 127.0.0.1 && wc -l < numbers.txt", stdin=script, timeout_s=60)
    assert result.stdout.split()[-4:] == ["5000050000", "COPY", "100000", "100000"], result
    for other in (5433, port):
        refused = await session.run(f"{psql} -h 127.0.0.1 -p {other} -c 'select 1'", timeout_s=60)
        assert not refused.ok
        assert "Connection refused" in refused.stderr, refused
