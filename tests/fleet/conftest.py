from __future__ import annotations

import secrets
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from redis.asyncio import Redis

from sandlot.fleet.memory import MemoryDirectory
from sandlot.fleet.redis_directory import RedisDirectory
from sandlot.testing.directory_suite.harness import TIMINGS, DirectoryHarness
from sandlot.testing.directory_suite.redis_server import RedisServer, redis_server
from tests.fleet.crew import Fleet


@pytest.fixture(scope="session")
def redis() -> Iterator[RedisServer]:
    """One for all tests that leave it as it was; each takes a cell of its own."""
    with redis_server() as server:
        yield server


@pytest.fixture
def folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="sandlot-test-"))
    yield path
    shutil.rmtree(path)


@pytest_asyncio.fixture(params=["memory", "redis"])
async def harness(request: pytest.FixtureRequest, redis: RedisServer) -> AsyncIterator[DirectoryHarness]:
    """Both implementations; their time passes when a test says so."""
    if request.param == "memory":
        now = 1000.0

        async def pass_in_memory(seconds: float) -> None:
            nonlocal now
            now += seconds

        memory = MemoryDirectory(timings=TIMINGS, clock=lambda: now)

        async def empty_memory() -> None:
            memory.empty()

        yield DirectoryHarness(memory, memory, pass_in_memory, empty_memory)
        return
    cell = f"case-{secrets.token_hex(4)}"
    directory = RedisDirectory.open(redis.url, cell=cell, timings=TIMINGS)
    plain = Redis.from_url(redis.url)

    async def pass_time(seconds: float) -> None:
        await directory.status()
        await plain.hincrby(f"sandlot:{{{cell}}}:meta", "clock", round(seconds * 1000))

    async def empty() -> None:
        async for key in plain.scan_iter(match=f"sandlot:{{{cell}}}:*", count=1000):
            await plain.delete(key)

    yield DirectoryHarness(directory, directory, pass_time, empty)
    await empty()
    await directory.close()
    await plain.aclose()


@pytest_asyncio.fixture
async def fleet(harness: DirectoryHarness, folder: Path) -> AsyncIterator[Fleet]:
    fleet = Fleet(harness.directory, folder)
    yield fleet
    await fleet.close()
