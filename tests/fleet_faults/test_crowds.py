"""Many at once: one thread is one sandbox, whoever asks whichever coordinator; sessions spread over the workers."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from functools import partial

import pytest

from sandlot import AsyncClient, AsyncSession
from sandlot.testing.eventually import eventually
from tests.faults.rig import created_at_last
from tests.fleet_faults.rig import Fleet

pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]
CLIENTS = 50
# The long forms are 100 rounds and 90 sessions. A fifth of a worker's share must be more than its pool, two: the last
# few go where pools were filled first.
ROUNDS = int(os.environ.get("SANDLOT_TEST_ROUNDS", "10"))
SESSIONS = int(os.environ.get("SANDLOT_TEST_SPREAD", "48"))


async def test_fifty_clients_and_one_thread(fleet: Fleet) -> None:
    """Fault 39 in a fleet: one sandbox and fifty equal answers, each time."""
    clients = [fleet.client(number % 2, straight=number % 4 < 2) for number in range(CLIENTS)]
    try:
        for round_ in range(ROUNDS):
            answers = await asyncio.gather(*(one_of(client, f"round{round_}") for client in clients))
            assert len({session.id for session in answers}) == 1
            assert len({session.info.sandbox_id for session in answers}) == 1
            assert sum(session.created or False for session in answers) == 1
            # Who deletes waits for the record of it, but not for ever: the last round's may be there still.
            await eventually(partial(is_all, clients[0], answers[0]), what="this is the only session")
            outputs = await asyncio.gather(*(session.run("echo $HOSTNAME") for session in answers[:10]))
            assert len({result.output for result in outputs}) == 1
            await answers[0].delete()
    finally:
        await asyncio.gather(*(client.aclose() for client in clients))
    await fleet.settle()


async def one_of(client: AsyncClient, thread: str) -> AsyncSession:
    return await created_at_last(client, thread=thread)


async def is_all(client: AsyncClient, one: AsyncSession) -> bool:
    return [session.id async for session in client.sessions()] == [one.id]


@pytest.mark.timeout(400)  # so many sandboxes are made and removed
async def test_spread(fleet: Fleet) -> None:
    """Sessions on three workers by two coordinators: a third each, a fifth of it more or less."""
    async with fleet.client() as one, fleet.client(1) as two:

        async def make(client: AsyncClient, many: int) -> list[AsyncSession]:
            return [await created_at_last(client, 60) for _ in range(many)]

        halves = await asyncio.gather(*(make((one, two)[n % 2], SESSIONS // 6) for n in range(6)))
        sessions = [session for half in halves for session in half]
        assert len({session.id for session in sessions}) == len(sessions) == SESSIONS
        ids = {session.info.sandbox_id for session in sessions}
        spread = Counter({worker.owner: len(ids & worker.containers().keys()) for worker in fleet.workers})
        print(f"{SESSIONS} sessions on {dict(spread)}")
        fair = SESSIONS / len(fleet.workers)
        assert sum(spread.values()) == SESSIONS
        assert all(0.8 * fair <= many <= 1.2 * fair for many in spread.values()), spread
        await asyncio.gather(*(session.delete() for session in sessions))
    await fleet.settle()
