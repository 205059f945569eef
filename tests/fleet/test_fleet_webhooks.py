"""A fleet's webhooks: coordinators keep the list in Redis, and each worker delivers what its history records."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import pytest_asyncio
from redis.asyncio import Redis

from sandlot.domain.callers.principal import OWNER, Principal
from sandlot.domain.errors import Conflict, NotFound, Unavailable, Unsupported
from sandlot.domain.webhooks import webhook as limits
from sandlot.domain.webhooks.webhook import Webhook
from sandlot.fleet.access import AccessTokens, TokenGate
from sandlot.fleet.coordinator import asked_workers
from sandlot.fleet.coordinator.asked_workers import AskedWorkers
from sandlot.fleet.coordinator.webhooks import FleetWebhooks
from sandlot.fleet.coordinator.worker_links import WorkerLinks
from sandlot.fleet.directory.contract import WorkerCard
from sandlot.fleet.directory.memory import MemoryDirectory
from sandlot.fleet.directory.redis_directory import RedisDirectory
from sandlot.fleet.signing_keys import SigningKey
from sandlot.fleet.webhooks.redis_webhooks import RedisWebhooks
from sandlot.testing import FakeService
from sandlot.testing.directory_suite.redis_server import RedisServer
from sandlot.testing.eventually import eventually
from sandlot.worker.webhooks.followed import FollowedWebhooks
from tests.fleet.fakes import nobody
from tests.service.served import served
from tests.unit.webhooks.receiver import (
    HASTY,
    LOOPBACK,
    PATIENT,
    TYPES,
    Receiver,
    Rig,
    receiving,
    rig_in,
    status,
)

SIGNING_KEY = SigningKey.generate("k1")
STRANGER = Principal("stranger")


@dataclass
class Fleet:
    """``rigs``: a history with webhooks for each worker. ``followed``: what each makes of the list."""

    shared: RedisWebhooks
    webhooks: FleetWebhooks
    directory: MemoryDirectory
    rigs: dict[str, Rig] = field(default_factory=dict)
    followed: dict[str, FollowedWebhooks] = field(default_factory=dict)

    async def refresh(self) -> None:
        for one in self.followed.values():
            await one.refresh()

    async def create(self, receiver: Receiver) -> Webhook:
        webhook = await self.webhooks.create(OWNER, receiver.url, TYPES)
        await self.refresh()
        return webhook


@pytest_asyncio.fixture
async def shared(redis: RedisServer) -> AsyncIterator[RedisWebhooks]:
    directory = RedisDirectory.open(redis.url, cell=f"webhooks-{secrets.token_hex(4)}", deadline_s=10.0)
    yield RedisWebhooks(directory.calls)
    await directory.close()


@pytest_asyncio.fixture
async def fleet(
    shared: RedisWebhooks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Fleet]:
    monkeypatch.setattr(asked_workers, "FRESH_S", 0.0)
    async with AsyncExitStack() as stack:
        tokens = AccessTokens(SIGNING_KEY, lifetime_s=60)
        links = WorkerLinks(tokens.for_member)
        stack.push_async_callback(links.close)
        directory = MemoryDirectory()
        asked = AskedWorkers(directory, links)
        fleet = Fleet(shared, FleetWebhooks(shared, asked, LOOPBACK), directory)
        for name in ("w1", "w2"):
            folder = tmp_path / name
            folder.mkdir()
            rig = await stack.enter_async_context(rig_in(folder, replace(HASTY, shared=True)))
            followed = FollowedWebhooks(rig.webhooks, shared)
            gate = TokenGate(SIGNING_KEY.public, worker_id=name, generation_of=lambda _: None)
            url = await stack.enter_async_context(
                served(FakeService(worker_id=name), tokens=gate, worker_id=name, webhooks=followed)
            )
            await directory.join(WorkerCard(name, url, "1"), "token-" + name)
            fleet.rigs[name], fleet.followed[name] = rig, followed
        yield fleet


async def delivered(fleet: Fleet, webhook: Webhook, count: int) -> None:
    async def so_many() -> bool:
        return (await fleet.webhooks.get(OWNER, webhook.id))[1].delivered == count

    await eventually(so_many, 20)


# --- the list -----------------------------------------------------------------------------------


async def test_the_list_and_its_bounds(shared: RedisWebhooks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_WEBHOOKS_OF_TENANT", 2)
    monkeypatch.setattr(limits, "MAX_WEBHOOKS", 3)
    empty = await shared.current()
    assert empty is not None
    assert empty.webhooks == []
    assert await shared.current(empty.mark) is None
    made = [
        limits.new_webhook(Principal(tenant), number, url="https://example.com/x", events=TYPES)
        for number, tenant in enumerate(("a", "a", "a", "b", "c"))
    ]
    for webhook in (made[0], made[1], made[0]):  # one of them again: its answer was lost
        await shared.add(webhook)
    with pytest.raises(Conflict, match="This tenant has 2 webhooks"):
        await shared.add(made[2])
    await shared.add(made[3])
    with pytest.raises(Conflict, match="There are 3 webhooks"):
        await shared.add(made[4])
    found = await shared.current(empty.mark)
    assert found is not None
    assert found.webhooks == [made[0], made[1], made[3]]  # with their secrets
    for webhook in (made[0], made[0]):
        await shared.remove(webhook)
    await shared.add(made[2])
    later = await shared.current(found.mark)
    assert later is not None
    assert later.webhooks == [made[1], made[2], made[3]]


async def test_an_emptied_redis_is_another_list(shared: RedisWebhooks, redis: RedisServer) -> None:
    webhook = limits.new_webhook(OWNER, 1.0, url="https://example.com/x", events=TYPES)
    await shared.add(webhook)
    found = await shared.current()
    assert found is not None
    client = Redis.from_url(redis.url)
    await client.delete(*[key async for key in client.scan_iter("sandlot:{webhooks-*")])
    await client.aclose()
    await shared.add(webhook)
    assert await shared.current(found.mark) is not None, "the same number of changes, but not the same ones"


async def test_redis_is_away() -> None:
    directory = RedisDirectory.open("redis://127.0.0.1:1/0", cell="x", deadline_s=1.0)
    with pytest.raises(Unavailable):
        await RedisWebhooks(directory.calls).current()
    await directory.close()


# --- workers and coordinators -------------------------------------------------------------------


async def test_each_worker_delivers_what_it_recorded(fleet: Fleet) -> None:
    async with receiving() as receiver:
        fleet.rigs["w1"].record(1)  # before the webhook
        webhook = await fleet.create(receiver)
        for number, name in enumerate(("w1", "w2", "w1", "w2"), 2):
            fleet.rigs[name].record(number)
        fleet.rigs["w1"].record(99, tenant="stranger")
        await delivered(fleet, webhook, 4)
        assert sorted(receiver.numbers) == [2, 3, 4, 5]
        assert len(set(receiver.ids)) == 4
        assert all(request.is_signed_with(webhook.secret) for request in receiver.requests)
        [(listed, progress)] = await fleet.webhooks.list(OWNER)
        assert (listed, progress.state, progress.missing_workers) == (webhook, "active", ())


async def test_a_worker_that_learns_of_it_late_sends_what_it_recorded_meanwhile(fleet: Fleet) -> None:
    async with receiving() as receiver:
        fleet.rigs["w1"].record(1)
        webhook = await fleet.webhooks.create(OWNER, receiver.url, TYPES)
        fleet.rigs["w1"].record(2, 3)
        await fleet.refresh()
        await delivered(fleet, webhook, 2)
        assert receiver.numbers == [2, 3]


async def test_deleted_for_all(fleet: Fleet) -> None:
    async with receiving() as receiver:
        webhook = await fleet.create(receiver)
        fleet.rigs["w1"].record(1)
        await delivered(fleet, webhook, 1)
        await fleet.webhooks.delete(OWNER, webhook.id)
        await fleet.refresh()
        for rig in fleet.rigs.values():
            rig.record(2)
            assert await rig.webhooks.list(OWNER) == []
        with pytest.raises(NotFound):
            await fleet.webhooks.get(OWNER, webhook.id)
        again = await fleet.create(receiver)
        fleet.rigs["w2"].record(3)
        await delivered(fleet, again, 1)
        assert receiver.numbers == [1, 3]


async def test_a_foreign_webhook_does_not_exist(fleet: Fleet) -> None:
    async with receiving() as receiver:
        webhook = await fleet.create(receiver)
        assert await fleet.webhooks.list(STRANGER) == []
        with pytest.raises(NotFound):
            await fleet.webhooks.get(STRANGER, webhook.id)
        with pytest.raises(NotFound):
            await fleet.webhooks.delete(STRANGER, webhook.id)
        with pytest.raises(NotFound):
            await fleet.webhooks.dead_letters(STRANGER, webhook.id, after=None, limit=10)
        with pytest.raises(NotFound):
            await fleet.webhooks.redeliver(STRANGER, webhook.id)
        assert len(await fleet.webhooks.list(OWNER)) == 1


@pytest.mark.parametrize("limit", [1, 2, 100])
async def test_dead_letters_of_all_workers(fleet: Fleet, limit: int) -> None:
    wrong = True

    async def answer(_: object) -> bytes:
        return status(500 if wrong else 204)

    async with receiving(answer) as receiver:
        webhook = await fleet.create(receiver)
        for number in range(3):
            for rig in fleet.rigs.values():
                rig.record(number)

        async def all_dead() -> bool:
            return (await fleet.webhooks.get(OWNER, webhook.id))[1].dead_letters == 6

        await eventually(all_dead, 20)
        found, after = [], None
        while True:
            page = await fleet.webhooks.dead_letters(OWNER, webhook.id, after=after, limit=limit)
            found += page.dead_letters
            after = page.next
            if after is None:
                break
        assert len({letter.id for letter in found}) == len(found) == 6
        assert [letter.time_us for letter in found] == sorted(letter.time_us for letter in found)
        wrong = False
        receiver.requests.clear()
        assert (await fleet.webhooks.redeliver(OWNER, webhook.id)).count == 6
        await delivered(fleet, webhook, 6)
        assert set(receiver.ids) == {letter.id for letter in found}


async def test_a_worker_that_is_away_is_named(fleet: Fleet) -> None:
    async with receiving() as receiver:
        webhook = await fleet.create(receiver)
        fleet.rigs["w1"].record(1)
        await delivered(fleet, webhook, 1)
        await fleet.directory.join(WorkerCard("w2", nobody(), "1"), "token-w2")
        [(_, progress)] = await fleet.webhooks.list(OWNER)
        assert (progress.delivered, progress.missing_workers) == (1, ("w2",))
        page = await fleet.webhooks.dead_letters(OWNER, webhook.id, after=None, limit=10)
        assert page.missing_workers == ("w2",)
        assert (await fleet.webhooks.redeliver(OWNER, webhook.id)).missing_workers == ("w2",)


async def test_a_receiver_that_is_gone_disables_it_once_each_worker_knows(fleet: Fleet) -> None:
    async def gone(_: object) -> bytes:
        return status(410)

    async with receiving(gone) as receiver:
        webhook = await fleet.create(receiver)
        for name, state in (("w1", "failing"), ("w2", "disabled")):
            fleet.rigs[name].record(1)

            async def is_so(state: str = state) -> bool:
                return (await fleet.webhooks.get(OWNER, webhook.id))[1].state == state

            await eventually(is_so, 20)
            if name == "w1":
                assert (await fleet.webhooks.redeliver(OWNER, webhook.id)).count == 0
        await fleet.refresh()
        assert len(receiver.requests) == 2
        with pytest.raises(Conflict, match="disabled"):
            await fleet.webhooks.redeliver(OWNER, webhook.id)


async def test_a_worker_creates_and_deletes_none(fleet: Fleet) -> None:
    for call in (
        fleet.followed["w1"].create(OWNER, "https://example.com/x", TYPES),
        fleet.followed["w1"].delete(OWNER, "whk_" + "0" * 32),
    ):
        with pytest.raises(Unsupported, match="coordinators"):
            await call


async def test_a_restarted_worker_goes_on_where_it_was(shared: RedisWebhooks, tmp_path: Path) -> None:
    """It sends nothing before it knows which webhooks are left."""
    options = replace(PATIENT, shared=True)
    async with receiving() as receiver:
        kept, deleted = [
            limits.new_webhook(OWNER, 0.0, url=receiver.url, events=TYPES, allowed=LOOPBACK) for _ in range(2)
        ]
        for webhook in (kept, deleted):
            await shared.add(webhook)
        async with rig_in(tmp_path, options) as rig:
            await FollowedWebhooks(rig.webhooks, shared).refresh()
            rig.record(1)
            for webhook in (kept, deleted):
                await rig.until_delivered(webhook, 1)
        await shared.remove(deleted)
        async with rig_in(tmp_path, options) as rig:
            rig.record(2)
            following = FollowedWebhooks(rig.webhooks, shared)
            following.open()
            await rig.until_delivered(kept, 2)
            await following.close()
            with pytest.raises(NotFound):
                await rig.webhooks.get(OWNER, deleted.id)
        assert sorted(receiver.numbers) == [1, 1, 2]
