"""Slots of commands that workers share: exact for a crowd, free after a death, each for itself without Redis."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from sandlot.domain.callers.limits import Allowance, CallerLimits
from sandlot.domain.errors import Busy
from sandlot.fleet.directory.redis_directory import RedisDirectory
from sandlot.fleet.slots import redis_slots
from sandlot.fleet.slots.redis_slots import RedisSlots
from sandlot.testing.directory_suite.redis_server import RedisServer, redis_server
from sandlot.testing.eventually import eventually

DEADLINE_S = 20.0
TENANT, KEY = "t:acme", "k:nightly"


def at_most(**limits: int) -> list[Allowance]:
    names = {"tenant": TENANT, "key": KEY}
    return [Allowance(names[kind], CallerLimits(execs=limit)) for kind, limit in limits.items()]


@asynccontextmanager
async def workers(
    url: str, cell: str, count: int = 3, deadline_s: float = DEADLINE_S
) -> AsyncIterator[list[RedisSlots]]:
    directories = [RedisDirectory.open(url, cell=cell, deadline_s=deadline_s) for _ in range(count)]
    made = [RedisSlots(directory.calls, f"w{number}") for number, directory in enumerate(directories)]
    for slots in made:
        slots.open()
    yield made
    for slots, directory in zip(made, directories, strict=True):
        await slots.close()
        await directory.close()


async def crowd(made: list[RedisSlots], allowances: list[Allowance], session: str) -> list[int]:
    """Which of 90 commands, shared out over the workers, got slots."""
    answers = await asyncio.gather(
        *(made[number % len(made)].take(f"{session}/{number}", allowances) for number in range(90)),
        return_exceptions=True,
    )
    assert all(answer is True or isinstance(answer, Busy) for answer in answers), answers
    return [number for number, answer in enumerate(answers) if answer is True]


async def one_more(slots: RedisSlots, name: str, allowances: list[Allowance]) -> None:
    async def taken() -> bool:
        try:
            return await slots.take(name, allowances)
        except Busy:
            return False

    await eventually(taken, 10, f"a slot for {name}")


async def test_a_crowd(redis: RedisServer) -> None:
    limits = at_most(tenant=10, key=4)
    async with workers(redis.url, "slots-1") as made:
        begun = await crowd(made, limits, "s")
        assert len(begun) == 4
        with pytest.raises(Busy, match="API key nightly may run 4 commands at once"):
            await made[0].take("s/more", limits)
        others = await crowd(made, at_most(tenant=10), "other-key")
        assert len(others) == 10 - 4
        for number in others:
            made[number % 3].release(f"other-key/{number}")
        for number in begun:
            made[number % 3].release(f"s/{number}")
        for number in range(4):
            await one_more(made[number % 3], f"later/{number}", limits)
        with pytest.raises(Busy):
            await made[2].take("later/more", limits)


async def test_a_workers_own_slots_are_free_at_once(redis: RedisServer) -> None:
    """The caller of a command that has ended may start the next one without a wait."""
    async with workers(redis.url, "slots-2", count=1) as [slots]:
        for number in range(200):
            assert await slots.take(f"s/{number}", at_most(tenant=1))
            slots.release(f"s/{number}")
        assert await slots.take("s/0", at_most(tenant=1))
        assert not await slots.take("s/0", at_most(tenant=1))


async def test_asked_for_twice_at_once(redis: RedisServer) -> None:
    """A client that gave up and asks again must not get a slot because the first request waits for one."""
    async with workers(redis.url, "slots-6", count=2) as [slots, other]:
        await other.take("s/a", at_most(tenant=1))
        answers = await asyncio.gather(
            *(slots.take("s/b", at_most(tenant=1)) for _ in range(10)), return_exceptions=True
        )
        assert all(isinstance(answer, Busy) for answer in answers)
        other.release("s/a")
        await one_more(slots, "s/b", at_most(tenant=1))
        assert not await slots.take("s/b", at_most(tenant=1))


async def test_a_dead_worker_and_its_next_life(redis: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_slots, "LIFE_S", 1.0)
    monkeypatch.setattr(redis_slots, "RENEW_EVERY_S", 0.2)
    limits = at_most(tenant=2)
    async with workers(redis.url, "slots-3", count=1) as [other]:
        async with workers(redis.url, "slots-3", count=2) as [_, dying]:
            for name in ("s/a", "s/b"):
                await dying.take(name, limits)
            await asyncio.sleep(1.5)  # they are renewed
            with pytest.raises(Busy):
                await other.take("s/c", limits)
        # Nobody renews them now. One of the commands runs on, and the next life takes it over.
        async with workers(redis.url, "slots-3", count=2) as [_, reborn]:
            reborn.resume("s/a", [TENANT])
            await one_more(other, "s/c", limits)
            await asyncio.sleep(1.5)
            for slots in (other, reborn):
                with pytest.raises(Busy):
                    await slots.take("s/d", limits)
            reborn.release("s/a")
            await one_more(other, "s/d", limits)


async def test_cancelled_while_asking(redis: RedisServer) -> None:
    async with workers(redis.url, "slots-4", count=2) as [slots, other]:
        for number in range(50):
            asking = asyncio.create_task(slots.take(f"s/{number}", at_most(tenant=1)))
            await asyncio.sleep(0.0001 * (number % 10))
            asking.cancel()
            await asyncio.wait({asking})
            if not asking.cancelled():
                slots.release(f"s/{number}")
        await one_more(other, "s/end", at_most(tenant=1))


async def test_each_for_itself_while_redis_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_slots, "ALONE_FOR_S", 0.2)
    limits = at_most(tenant=2)
    with redis_server() as server:
        async with workers(server.url, "slots-5", count=2, deadline_s=1.0) as [one, two]:
            await one.take("s/a", limits)
            server.kill()
            await one.take("s/b", limits)
            await two.take("s/c", limits)
            await two.take("s/d", limits)
            for slots in (one, two):
                with pytest.raises(Busy):
                    await slots.take("s/e", limits)
            two.release("s/d")
            server.start()

            async def known() -> bool:
                """Redis had lost everything, and learns it again."""
                with pytest.raises(Busy):
                    await one.take("s/f", limits)
                try:
                    await two.take("s/f", limits)
                except Busy:
                    return True
                two.release("s/f")
                return False

            monkeypatch.setattr(redis_slots, "RENEW_EVERY_S", 0.2)
            for slots in (one, two):
                await slots.close()
                slots.open()
            await eventually(known, 20, "the slots are counted together again")
