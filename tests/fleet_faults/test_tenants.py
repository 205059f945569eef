"""What an operator gives a tenant holds on every worker of a fleet of processes: a policy, and webhooks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from sandlot import errors
from sandlot.client.http.administrator import Administrator
from sandlot.testing.eventually import eventually
from sandlot.wire.webhook_bodies import CreateWebhookBody
from tests.fleet_faults.rig import KEY, Fleet, running
from tests.unit.webhooks.receiver import Receiver, receiving

pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]

# All members have heard of a change by then.
HEARD_WITHIN_S = 5.0
# The fourth attempt comes up to 3 minutes after the first, if a busy machine has missed the others.
DELIVERED_WITHIN_S = 300.0
FORBIDDEN = "rm -rf /"


@asynccontextmanager
async def administrator(fleet: Fleet) -> AsyncIterator[Administrator]:
    boss = Administrator(fleet.coordinators[-1].url, KEY)
    try:
        yield boss
    finally:
        await boss.close()


@pytest.mark.parametrize("straight", [True, False], ids=["straight", "proxied"])
async def test_a_policy_holds_on_every_worker(fleet: Fleet, straight: bool) -> None:
    tenant = f"policed-{straight}".lower()
    key = await fleet.key_of(tenant)
    async with (
        administrator(fleet) as boss,
        fleet.client(key=key, straight=straight) as client,
        fleet.client(straight=straight) as owner,
    ):
        sessions = [await client.create() for _ in range(6)]
        assert len({fleet.worker_of(session).owner for session in sessions}) > 1
        foreign = await owner.create()
        await boss.set_policy(tenant, "validation")
        await asyncio.sleep(HEARD_WITHIN_S)
        for session in sessions:
            with pytest.raises(errors.PolicyDenied):
                await session.run(FORBIDDEN)
            assert (await session.run("echo fine")).output == "fine\n"
        # Inside a function that is never called: nothing is deleted, and no policy looks at it.
        assert (await foreign.run("f() { rm -rf /; }; echo free")).output == "free\n"
        await boss.set_policy(tenant, None)
        await asyncio.sleep(HEARD_WITHIN_S)
        for session in sessions:
            assert (await session.run("f() { rm -rf /; }; echo free")).output == "free\n"
            await session.delete()
        await foreign.delete()
    await fleet.settle()


async def test_webhooks_of_all_workers_across_a_death() -> None:
    """Each worker sends what it recorded. One dies by kill -9 while the receiver is down: nothing is lost, and
    what is sent again has the same id."""
    local = Fleet(workers=2, coordinators=1)
    for member in local.members:
        member.environ["SANDLOT_WEBHOOK_ALLOW"] = "127.0.0.0/8"
    async with (
        running(local) as fleet,
        administrator(fleet) as boss,
        fleet.client() as client,
        receiving() as receiver,
    ):
        created = await boss.create_webhook(
            CreateWebhookBody(receiver.url, events=["session.created", "session.ended"])
        )
        await asyncio.sleep(HEARD_WITHIN_S)
        await receiver.stop()
        sessions = [await client.create() for _ in range(6)]
        workers = {fleet.worker_of(session).owner for session in sessions}
        assert len(workers) == 2
        await fleet.workers[0].kill()
        await fleet.workers[0].start()
        await receiver.start()
        await _received(receiver, {("session.created", session.id) for session in sessions})
        for session in sessions:
            await session.delete()
        await _received(receiver, {("session.ended", session.id) for session in sessions})

        async def counted() -> bool:
            (webhook,) = await boss.webhooks()
            return webhook.delivered >= 12 and not webhook.missing_workers

        await eventually(counted, DELIVERED_WITHIN_S)
        await boss.delete_webhook(created.webhook.id)


async def _received(receiver: Receiver, expected: set[tuple[str, str]]) -> None:
    def seen() -> dict[tuple[str, str], set[str]]:
        ids: dict[tuple[str, str], set[str]] = {}
        for request in receiver.requests:
            ids.setdefault((request.data["kind"], request.data["session_id"]), set()).add(request.id)
        return ids

    async def complete() -> bool:
        return expected <= seen().keys()

    await eventually(complete, DELIVERED_WITHIN_S)
    assert all(len(ids) == 1 for ids in seen().values())
