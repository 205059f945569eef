"""Redis's primary dies under load, and a replica takes over: creates resume, and every session has one owner."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from sandlot import AsyncClient, AsyncSession, errors
from sandlot.testing.eventually import eventually
from tests.faults.invariants import told
from tests.faults.rig import created_at_last
from tests.fleet_faults.healing import healing
from tests.fleet_faults.rig import Fleet, running
from tests.fleet_faults.sentinels import Watched

pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]
CREATORS = 6


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def watched() -> AsyncIterator[Watched]:
    watched = Watched()
    try:
        watched.start()
        yield watched
    finally:
        watched.remove()


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def fleet(watched: Watched) -> AsyncIterator[Fleet]:
    async with running(Fleet(redis=watched.primary, redis_environ=watched.environ)) as fleet:
        yield fleet


class Creator:
    """Makes one session after the other, each of a thread that others ask for too, and ends most of them."""

    def __init__(self, client: AsyncClient, number: int) -> None:
        self.client = client
        self.number = number
        self.kept: list[AsyncSession] = []
        self.done = 0
        self.refused = 0
        self.stopping = False

    async def work(self) -> None:
        while not self.stopping:
            try:
                session = await self.client.thread(f"load-{self.number // 2}-{self.done}")
                self.done += 1
                if self.done % 3 == 1:
                    self.kept.append(session)
                else:
                    await session.delete()
            except errors.SandlotError as error:
                assert isinstance(told(error), errors.Unavailable | errors.LinkInterrupted | errors.NotFound)
                self.refused += 1
                await asyncio.sleep(0.2)
            await asyncio.sleep(0.1)


@pytest.mark.timeout(400)  # the fleet is started within it, and a vote of the sentinels may be taken twice
async def test_under_load(fleet: Fleet, watched: Watched) -> None:
    """Fault 16."""
    async with fleet.client() as one, fleet.client(1, straight=False) as two:
        steady = await created_at_last(one, thread="steady", certain=False)
        creators = [Creator((one, two)[number % 2], number) for number in range(CREATORS)]
        working = [asyncio.create_task(creator.work()) for creator in creators]
        await asyncio.sleep(1.5)
        watched.primary.kill()
        with healing("Redis's primary kill -9, failover by sentinels under load: a new session"):
            for _ in range(5):
                assert (await steady.run("echo on")).output == "on\n"
                await asyncio.sleep(0.1)
            # A vote of the sentinels that is split is taken again after ten seconds.
            last = await created_at_last(two, 100, thread="after", certain=False)
        # The one that is asked here may hear of it a little later.
        await eventually(lambda: watched.master_port() == watched.replica.port, 20)
        fleet.redis = watched.replica
        done = [creator.done for creator in creators]

        async def all_resume() -> bool:
            return all(creator.done > before for creator, before in zip(creators, done, strict=True))

        await eventually(all_resume, 60, "every creator goes on")
        for creator in creators:
            creator.stopping = True
        await asyncio.gather(*working)
        # Nothing that was acknowledged is lost, although the replica may not have had it yet.
        kept = {session.id for creator in creators for session in creator.kept}
        alive = 0
        for creator in creators:
            for session in creator.kept:
                try:
                    assert (await session.run("echo here")).output == "here\n"
                    alive += 1
                except errors.SessionEnded:
                    pass  # by the other creator of its thread
        assert alive > 0
        print(f"failover: {sum(c.done for c in creators)} done, {sum(c.refused for c in creators)} refused")
        assert (await one.thread("steady")).id == steady.id
        assert kept
        async for session in one.sessions():
            await session.delete()
        with pytest.raises(errors.SessionEnded):
            await last.run("echo gone")
    await fleet.settle()
