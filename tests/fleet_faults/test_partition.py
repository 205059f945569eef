"""A worker with a network of its own, whose cable is pulled: real packets, really lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from sandlot import Result, errors
from sandlot.fleet.directory.contract import Timings
from sandlot.testing.directory_suite.redis_server import RedisServer, redis_server
from tests.faults.invariants import counted, times_run
from tests.fleet_faults.healing import healing
from tests.fleet_faults.member import SANDLOT, Member
from tests.fleet_faults.network import Namespace, as_root
from tests.fleet_faults.rig import Fleet, running
from tests.fleet_faults.waiting import begun, given_up, removed, works_again

pytestmark = [as_root, pytest.mark.docker, pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]


@pytest.fixture(scope="module")
def network() -> Iterator[Namespace]:
    network = Namespace()
    try:
        network.open()
        yield network
    finally:
        network.remove()


@pytest.fixture(scope="module")
def redis(network: Namespace) -> Iterator[RedisServer]:
    """It listens at the end of the cable too; the cable leads nowhere else."""
    with redis_server("--bind", f"127.0.0.1 {network.outside}", "--protected-mode", "no") as redis:
        yield redis


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def fleet(network: Namespace, redis: RedisServer) -> AsyncIterator[Fleet]:
    """One worker here, one behind the cable."""
    fleet = Fleet(
        workers=1,
        # Who asks for a session of a worker that is silent tries three times: the grace is longer, by far.
        timings=Timings(lease_s=3.0, lost_after_s=15.0),
        redis=redis,
        redis_environ={"SANDLOT_REDIS_URL": f"redis://{network.outside}:{redis.port}/0"},
    )
    far = fleet.new_worker(host=network.inside)
    far.command = network.command(*SANDLOT, "worker")
    far.url = f"http://{network.inside}:{far.port}"
    fleet.workers.append(far)
    async with running(fleet):
        yield fleet


@pytest.fixture
def far(fleet: Fleet) -> Member:
    return fleet.workers[1]


async def test_shorter_than_the_grace(fleet: Fleet, network: Namespace, far: Member) -> None:
    async with fleet.client() as client:
        session = await fleet.session_on(far, client)
        name = session.thread
        assert name is not None
        running = asyncio.create_task(session.run(counted("across", 4), exec_id="across"))
        await begun(session, "across")
        network.down()
        await asyncio.sleep(fleet.timings.lease_s + 1)
        with pytest.raises(errors.Unavailable):
            await client.thread(name)
        network.up()
        with healing("a worker's cable out for 4 s and in again: its session runs commands"):

            async def by_its_thread() -> Result:
                return await (await client.thread(name)).run("echo on")

            await works_again(by_its_thread, "on\n")
        assert (await running).output == "done across\n"
        assert await times_run(session, "across") == 1
        assert (await client.thread(name)).generation == 1
        await session.delete()
    await fleet.settle()


async def test_longer_than_the_grace(fleet: Fleet, network: Namespace, far: Member) -> None:
    """It is given up; it lives on alone, cut off from all who could command it, and gives in when it is back."""
    async with fleet.client() as client:
        session = await fleet.session_on(far, client)
        name = session.thread
        assert name is not None
        old = session.info.sandbox_id
        network.down()
        try:
            with healing("a worker's cable out for good: its session is reported lost"):
                await given_up(client, name)
            again = await client.thread(name, recreate_lost=True)
            assert (again.id, again.generation) == (session.id, 2)
            assert fleet.worker_of(again) is fleet.workers[0]
            assert old in far.containers()
        finally:
            network.up()
        with healing("a worker's cable in again after it was given up: its old sandbox is removed"):
            await removed(far, {old})
        assert (await again.run("echo one")).output == "one\n"
        await again.delete()
    await fleet.settle()
