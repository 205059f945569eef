"""Redis goes, freezes, forgets, fills up or is slow: running sandboxes go on, creates say when to come again, and
what the workers hold is what the fleet knows afterwards.
"""

from __future__ import annotations

import asyncio
import shutil
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import httpx
import pytest
import pytest_asyncio
from redis.asyncio import Redis

from sandlot import AsyncClient, AsyncSession, errors
from sandlot.fleet.directory.contract import Timings
from sandlot.testing.eventually import eventually
from tests.faults.invariants import counted, problem, times_run, told
from tests.faults.rig import created_at_last
from tests.fleet_faults.healing import healing
from tests.fleet_faults.member import Member
from tests.fleet_faults.network import Cut, as_root, cut_off
from tests.fleet_faults.rig import KEY, Fleet, running

pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]
# Longer than the lease; tokens are renewed within it.
OUTAGE_S = 7.0
# What no answer may take, whatever Redis does, which is not healed before: generous, since two cores carry the whole
# fleet.
ANSWER_WITHIN_S = 20.0
# Nobody is to be given up here: twice as long as what is done takes while a worker is cut off.
TIMINGS = Timings(lease_s=3.0, lost_after_s=12.0)
THREADS = ("a", "b", "c")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def fleet() -> AsyncIterator[Fleet]:
    async with running(Fleet(line=True, timings=TIMINGS)) as fleet:
        yield fleet


class Held:
    """Three sessions of three threads, with a command that runs all the while, seen straight and by a proxy."""

    def __init__(
        self, straight: AsyncClient, proxied: AsyncClient, sessions: dict[str, AsyncSession]
    ) -> None:
        self.straight = straight
        self.proxied = proxied
        self.sessions = sessions
        self.running = {
            name: asyncio.create_task(session.run(counted(f"long-{name}", OUTAGE_S), exec_id=f"long-{name}"))
            for name, session in sessions.items()
        }
        self.slowest_s = 0.0

    async def go_on(self, seconds: float) -> None:
        """Commands are run, straight and through a coordinator, for so long."""
        deadline = time.monotonic() + seconds
        number = 0
        while time.monotonic() < deadline:
            for name, session in self.sessions.items():
                through = await self.proxied.get(session.id)
                for one in (session, through):
                    number += 1
                    began = time.monotonic()
                    assert (await one.run(f"echo {name}{number}")).output == f"{name}{number}\n"
                    self.slowest_s = max(self.slowest_s, time.monotonic() - began)
            await asyncio.sleep(0.2)
        assert self.slowest_s < ANSWER_WITHIN_S

    async def all_there(self) -> None:
        """Nothing ended, nothing replaced, nothing run twice."""
        for name, session in self.sessions.items():
            assert (await self.running[name]).output == f"done long-{name}\n"
            for client in (self.straight, self.proxied):
                same = await created_at_last(client, thread=name, certain=False)
                assert (same.id, same.generation, same.state) == (session.id, 1, "active")
                assert same.info.sandbox_id == session.info.sandbox_id
            assert await times_run(session, f"long-{name}") == 1


@asynccontextmanager
async def held(fleet: Fleet) -> AsyncIterator[Held]:
    async with fleet.client() as straight, fleet.client(1, straight=False) as proxied:
        sessions = {name: await created_at_last(straight, thread=name, certain=False) for name in THREADS}
        for session in sessions.values():
            await proxied.get(session.id)
        holding = Held(straight, proxied, sessions)
        try:
            yield holding
        finally:
            for task in holding.running.values():
                task.cancel()
            await asyncio.gather(*holding.running.values(), return_exceptions=True)
        for session in sessions.values():
            await session.delete()
    await fleet.settle()


async def refused_create(coordinator: Member) -> str:
    """As any HTTP client sees it: 503, when to come again, and that nothing was begun."""
    async with httpx.AsyncClient(timeout=ANSWER_WITHIN_S) as http:
        answer = await http.post(
            f"{coordinator.url}/v1/sessions", json={}, headers={"Authorization": f"Bearer {KEY}"}
        )
    body = problem(answer, 503, "unavailable")
    assert body["retryable"]
    assert not body["may_have_executed"]
    assert int(answer.headers["retry-after"]) >= 1
    detail: str = body["detail"]
    return detail


async def every_member_answers(fleet: Fleet) -> None:
    """No event loop stands still, and health says how it is."""
    for member in fleet.members:
        began = time.monotonic()
        await member.open_health()
        assert time.monotonic() - began < ANSWER_WITHIN_S


def killed(fleet: Fleet) -> Callable[[], None]:
    """Faults 13, 14: it comes back with what it wrote down."""
    fleet.redis.kill()
    return fleet.redis.start


def frozen(fleet: Fleet) -> Callable[[], None]:
    """Fault 18."""
    fleet.redis.signal(signal.SIGSTOP)
    return lambda: fleet.redis.signal(signal.SIGCONT)


def killed_and_emptied(fleet: Fleet) -> Callable[[], None]:
    """Fault 15: it comes back with nothing."""
    folder = fleet.redis_folder()
    fleet.redis.kill()

    def start() -> None:
        shutil.rmtree(folder / "appendonlydir")
        fleet.redis.start()

    return start


@pytest.mark.parametrize("outage", [killed, frozen, killed_and_emptied])
async def test_away_for_a_while(fleet: Fleet, outage: Callable[[Fleet], Callable[[], None]]) -> None:
    async with held(fleet) as holding:
        heal = outage(fleet)
        try:
            for coordinator in fleet.coordinators:
                assert "Redis" in await refused_create(coordinator)
            await every_member_answers(fleet)
            await holding.go_on(OUTAGE_S)
            assert "Redis" in await refused_create(fleet.coordinators[0])
        finally:
            heal()
        with healing(f"Redis {outage.__name__.replace('_', ' ')} for {OUTAGE_S:g} s: a new session"):
            new = await created_at_last(holding.straight, certain=False)
        await new.delete()
        await holding.all_there()


async def test_emptied_under_the_fleet(fleet: Fleet) -> None:
    """Fault 15: FLUSHALL. Filled again from the workers: no sandbox dies of it, no thread gets a second one."""
    async with held(fleet) as holding:
        redis = Redis.from_url(fleet.redis.url)
        await redis.flushall()
        await redis.aclose()
        with healing("Redis emptied: every thread has its session again"):
            # All at once and at both coordinators: nobody is given a second sandbox meanwhile.
            again = await asyncio.gather(
                *(
                    created_at_last(client, thread=name, certain=False)
                    for name in THREADS
                    for client in (holding.straight, holding.proxied)
                )
            )
        assert {session.id for session in again} == {session.id for session in holding.sessions.values()}
        await holding.go_on(1)
        await holding.all_there()


async def test_slow(fleet: Fleet) -> None:
    """Fault 18: half a second for each answer of Redis. Creates are slow or refused; nothing else is touched."""
    assert fleet.line is not None
    async with held(fleet) as holding:
        fleet.line.late_by = 0.5
        try:
            await every_member_answers(fleet)
            made, refusals = [], 0
            for _ in range(4):
                began = time.monotonic()
                try:
                    made.append(await holding.straight.create())
                except errors.SandlotError as error:
                    assert isinstance(told(error), errors.Unavailable)
                    assert not error.may_have_executed
                    refusals += 1
                # The client itself asks three times.
                assert time.monotonic() - began < 3 * ANSWER_WITHIN_S
            print(f"with a Redis that takes 0.5 s: {len(made)} creates done, {refusals} refused")
            await holding.go_on(OUTAGE_S)
        finally:
            fleet.line.late_by = 0.0
        with healing("Redis late by 0.5 s, then quick again: a new session"):
            made.append(await created_at_last(holding.straight, certain=False))
        for session in made:
            await session.delete()
        await holding.all_there()


async def test_full(fleet: Fleet) -> None:
    """Fault 19: a refusal that says what to do about it; what runs goes on, what ends can be recorded."""
    async with held(fleet) as holding:
        redis = Redis.from_url(fleet.redis.url)
        await redis.config_set("maxmemory", "1mb")
        try:
            assert "out of memory" in await refused_create(fleet.coordinators[0])
            await holding.go_on(2)
            for worker in fleet.workers:
                await eventually(worker.is_ready, 20, "it takes sessions")
        finally:
            await redis.config_set("maxmemory", "0")
            await redis.aclose()
        with healing("Redis out of memory, then given more: a new session"):
            new = await created_at_last(holding.straight, certain=False)
        await new.delete()
        await holding.all_there()


@as_root
@pytest.mark.parametrize("how", Cut)
async def test_one_worker_cut_off_from_it(fleet: Fleet, how: Cut) -> None:
    """Fault 22: late to everybody else, it serves what it has; new sessions go to others."""
    assert fleet.line is not None
    async with held(fleet) as holding:
        session = holding.sessions["a"]
        worker = fleet.worker_of(session)
        with cut_off(worker, fleet.line.port, how=how):
            await asyncio.sleep(fleet.timings.lease_s + 0.5)
            # All at once: it is given up if this takes long.
            new = await asyncio.gather(*(created_at_last(holding.proxied, certain=False) for _ in range(3)))
            began = time.monotonic()
            assert (await session.run("echo cut off")).output == "cut off\n"
            assert (await (await holding.proxied.get(session.id)).run("echo too")).output == "too\n"
            assert time.monotonic() - began < 2 * ANSWER_WITHIN_S
        with healing(f"worker cut off from Redis ({how.name.lower()}), healed: its thread is found"):
            same = await created_at_last(holding.proxied, thread="a", certain=False)
        assert same.id == session.id
        assert worker not in map(fleet.worker_of, new)
        for one in new:
            await one.delete()
        await eventually(worker.is_ready, 30, "it takes sessions again")
        await holding.all_there()
