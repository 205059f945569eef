"""Fault 49: the engine's disk is full. What runs goes on, what is new is refused, and what ends makes room."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest
import pytest_asyncio

from sandlot import AsyncClient
from sandlot.testing.eventually import eventually
from tests.faults.disk import SmallDisk
from tests.faults.engine import OwnEngine
from tests.faults.invariants import problem
from tests.faults.rig import ServerProcess, created_at_last

pytestmark = [pytest.mark.docker, pytest.mark.slow]


@pytest.fixture
def disk() -> Iterator[SmallDisk]:
    disk = SmallDisk(700)
    yield disk
    disk.clean()


@pytest.fixture
def engine(disk: SmallDisk) -> Iterator[OwnEngine]:
    engine = OwnEngine(data_root=disk.path / "docker")
    try:
        engine.start()
        engine.load()
        yield engine
    finally:
        engine.clean()


@pytest_asyncio.fixture
async def server(engine: OwnEngine, slim_registry: Path) -> AsyncIterator[ServerProcess]:
    server = ServerProcess(
        docker_host=engine.host,
        registry=slim_registry,
        queue_timeout_s="4",
        pool_size="0",
        min_pool_size="0",
        max_pool_size="0",
        # Not before the engine itself has no room left: that is what is looked at here.
        min_free_bytes="0",
    )
    try:
        await server.start()
        yield server
    finally:
        await server.clean()


async def test_no_room(disk: SmallDisk, server: ServerProcess) -> None:
    async with server.client() as client, httpx.AsyncClient(base_url=server.url, timeout=30) as http:
        kept, doomed = await created_at_last(client), await created_at_last(client)
        await kept.files.write("kept.txt", "here")
        await asyncio.to_thread(disk.fill)
        refusals = 0
        causes: set[str] = set()

        async def refused_for_want_of_room() -> bool:
            nonlocal refusals
            # What was freed and not yet written down when the disk was filled has become room since.
            await asyncio.to_thread(disk.fill)
            body = problem(await http.post("/v1/sessions", json={}), 503, "unavailable")
            assert (body["retryable"], body["may_have_executed"]) == (True, False)
            # While a sandbox is tried for, one waits in vain; between the tries the cause is told at once.
            why = body["details"]
            assert why["reason"] in ("queue", "environment_broken")
            if why["reason"] == "environment_broken":
                assert "Docker's disk is full" in body["detail"]
                causes.add(why["cause"])
            refusals += 1
            return refusals >= 6 and bool(causes)

        await eventually(refused_for_want_of_room, 60, lambda: f"{refusals} refusals told {causes}")
        assert causes == {"storage_full"}
        # What runs goes on; what it writes is its own trouble, and is told so.
        result = await kept.run("cat kept.txt; echo; seq 3 | sort -r | tr -d '\\n'")
        assert result.output == "here\n321"
        full = await kept.run("head -c 50000000 /dev/zero > big")
        assert (full.verdict, full.ok) == ("disk_full", False)
        await kept.run("rm -f big")
        await doomed.delete()
        assert doomed.info.sandbox_id not in server.containers()
        await asyncio.to_thread(disk.make_room)
        after = await created_at_last(client)
        assert (await after.run("echo room")).output == "room\n"
        assert (await kept.refresh()).generation == 1
        await healthy(client)
    await server.settle()


async def healthy(client: AsyncClient) -> None:
    async def well() -> bool:
        return not (await client.health()).problems

    await eventually(well, 30, "no problems are left")
