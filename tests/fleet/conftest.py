from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from sandlot.testing.directory_suite.harness import DirectoryHarness
from sandlot.testing.directory_suite.redis_server import RedisServer, redis_server
from tests.fleet.crew import Fleet
from tests.fleet.fakes import Scene, two_workers
from tests.fleet.harnesses import in_memory, in_redis
from tests.fleet.straight_rig import Rig, rigged


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
    if request.param == "memory":
        yield in_memory()
        return
    async with in_redis(redis.url) as harness:
        yield harness


@pytest_asyncio.fixture
async def fleet(harness: DirectoryHarness, folder: Path) -> AsyncIterator[Fleet]:
    fleet = Fleet(harness.directory, folder)
    yield fleet
    await fleet.close()


@pytest_asyncio.fixture
async def scene() -> AsyncIterator[Scene]:
    async with two_workers() as scene:
        yield scene


@pytest_asyncio.fixture
async def rig() -> AsyncIterator[Rig]:
    async with rigged() as rig:
        yield rig
