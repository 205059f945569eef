"""Limits of a tenant in a fleet: exact for a crowd, through every member, and after deaths."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial

import httpx
import pytest

from sandlot import AsyncClient, AsyncSession, errors
from sandlot.client.http.administrator import Administrator
from sandlot.domain.callers.limits import tenant_holder
from sandlot.testing.eventually import eventually
from sandlot.wire.key_bodies import CreateKeyBody
from sandlot.wire.tenant_bodies import LimitsBody
from tests.fleet_faults.rig import KEY, Fleet
from tests.fleet_faults.waiting import works_again

pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]

QUOTA = 6
CROWD = 100
CALLS_PER_S = 5
# All members have heard of new limits by then.
HEARD_WITHIN_S = 5.0
# A reservation that nobody gave back expires after two minutes.
AT_REST_WITHIN_S = 180.0


class Tenant:
    """A tenant with limits, and clients of it: one for each coordinator."""

    def __init__(self, fleet: Fleet, name: str, key: str, clients: list[AsyncClient]) -> None:
        self.fleet = fleet
        self.name = name
        self.key = key
        self.clients = clients

    async def crowd(self, count: int = CROWD) -> list[AsyncSession]:
        """What ``count`` creates at once get, shared out over the coordinators."""
        asked = [self.clients[number % len(self.clients)].create() for number in range(count)]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        unexpected = [
            answer
            for answer in answers
            if isinstance(answer, BaseException)
            and not (isinstance(answer, errors.SandlotError) and answer.retryable)
        ]
        assert not unexpected, unexpected[:3]
        return [answer for answer in answers if isinstance(answer, AsyncSession)]

    async def sessions(self) -> list[AsyncSession]:
        return [session async for session in self.clients[-1].sessions()]

    async def used(self) -> int:
        async with self.fleet.directory() as directory:
            return (await directory.use(tenant_holder(self.name))).sessions

    async def fill(self) -> None:
        """None too few: at rest, creates succeed until exactly the quota is there, and then none does."""

        async def at_rest() -> bool:
            return await self.used() == len(await self.sessions())

        await eventually(at_rest, AT_REST_WITHIN_S)
        while (count := len(await self.sessions())) < QUOTA:
            assert await self.used() == count
            try:
                await self.clients[-1].create()
            except errors.Unavailable:
                await asyncio.sleep(0.5)  # a worker that is still starting, or a pool that is empty
        for client in self.clients:
            with pytest.raises(errors.Busy) as refused:
                await client.create()
            assert refused.value.details == {
                **refused.value.details,
                "reason": "quota",
                "limit": "sessions",
                "at_most": QUOTA,
            }


@asynccontextmanager
async def tenant(fleet: Fleet, name: str, **limits: float) -> AsyncIterator[Tenant]:
    async with AsyncExitStack() as stack:
        boss = Administrator(fleet.coordinators[-1].url, KEY)
        stack.push_async_callback(boss.close)
        await boss.set_limits(name, LimitsBody(**limits))  # type: ignore[arg-type]
        new = await boss.create_key(CreateKeyBody("of a crowd", tenant=name))
        await asyncio.sleep(HEARD_WITHIN_S)
        clients = [
            await stack.enter_async_context(fleet.client(number, key=new.secret))
            for number in range(len(fleet.coordinators))
        ]
        yield Tenant(fleet, name, new.secret, clients)
        await boss.set_limits(name, LimitsBody())
        await asyncio.sleep(HEARD_WITHIN_S)
        async for session in clients[-1].sessions():
            await session.delete()
        assert (await boss.tenant(name)).use.sessions == 0
        await boss.revoke_key(new.key.id)


async def test_a_crowd_at_the_limit(fleet: Fleet) -> None:
    async with tenant(fleet, "crowd", sessions=QUOTA) as crowd:
        made = await crowd.crowd()
        assert 0 < len(made) <= QUOTA
        assert len(await crowd.sessions()) <= QUOTA
        await crowd.fill()
        # Another tenant has its own.
        async with fleet.client() as owner:
            await (await owner.create()).delete()
    await fleet.settle()


async def test_members_die_meanwhile(fleet: Fleet) -> None:
    """kill -9 of a worker and of a coordinator during the crowd: still never one too many, and none too few."""
    async with tenant(fleet, "survivors", sessions=QUOTA) as crowd:
        running = asyncio.create_task(crowd.crowd())
        await asyncio.sleep(0.3)
        await fleet.workers[0].kill()
        await fleet.coordinators[0].kill()
        await running
        assert len(await crowd.sessions()) <= QUOTA
        for member in (fleet.workers[0], fleet.coordinators[0]):
            await member.start()
        await crowd.fill()
        assert len(await crowd.sessions()) == QUOTA
    await fleet.settle()


async def test_commands_at_once(fleet: Fleet) -> None:
    """Straight and through two coordinators, on three workers, of which one dies by kill -9."""
    async with tenant(fleet, "busy", execs=QUOTA) as busy, AsyncExitStack() as stack:
        sessions = [await busy.clients[number % 2].create() for number in range(6)]
        for number in range(2):
            proxied = await stack.enter_async_context(fleet.client(number, key=busy.key, straight=False))
            sessions += [await proxied.get(session.id) for session in sessions[:6]]

        async def start(number: int) -> None:
            await sessions[number % len(sessions)].start("sleep 600", exec_id=f"e{number}")

        async def running() -> list[tuple[AsyncSession, str]]:
            return [
                (session, known.exec_id)
                for session in sessions[:6]
                for known in await session.execs()
                if known.running
            ]

        answers = await asyncio.gather(*(start(number) for number in range(CROWD)), return_exceptions=True)
        refused = [answer for answer in answers if isinstance(answer, errors.Busy)]
        assert refused
        assert {error.details.get("limit") for error in refused} == {"execs"}
        assert answers.count(None) <= len(await running()) <= QUOTA
        # None too few: what a slow answer or a broken connection has cost can be had again.
        for number in range(CROWD, 2 * CROWD):
            if len(await running()) == QUOTA:
                break
            with suppress(errors.SandlotError):
                await start(number)
        assert len(await running()) == QUOTA
        with pytest.raises(errors.Busy):
            await sessions[0].run("true")
        # Its next life counts what still runs in its sandboxes.
        (session, _), *_ = await running()
        worker = fleet.worker_of(session)
        await worker.kill()
        await worker.start()
        await works_again(lambda: _refusal(session), "execs")
        assert len(await running()) == QUOTA
        for session, exec_id in await running():
            await (await session.exec(exec_id)).kill()
        for session in sessions[:6]:
            await works_again(partial(session.run, "echo free"), "free\n")
    await fleet.settle()


@dataclass
class _Refused:
    output: str


async def _refusal(session: AsyncSession) -> _Refused:
    """Which limit refuses a command."""
    try:
        await session.run("true")
    except errors.Busy as error:
        return _Refused(str(error.details.get("limit")))
    raise AssertionError("one command too many")


async def test_calls_through_every_member(fleet: Fleet) -> None:
    """Two coordinators and the session's worker count together."""
    async with tenant(fleet, "callers") as callers, AsyncExitStack() as stack:
        boss = Administrator(fleet.coordinators[0].url, KEY)
        stack.push_async_callback(boss.close)
        session = await callers.clients[0].create()
        async with httpx.AsyncClient(timeout=30) as http:
            key = {"Authorization": f"Bearer {callers.key}"}
            path = f"/v1/sessions/{session.id}"
            await boss.set_limits("callers", LimitsBody(calls_per_s=CALLS_PER_S))
            await asyncio.sleep(HEARD_WITHIN_S)
            # Now, because an access lasts for seconds.
            access = (await http.get(f"{fleet.coordinators[0].url}{path}", headers=key)).json()["access"]
            places = [(f"{one.url}{path}", key) for one in fleet.coordinators]
            places.append((f"{access['url']}{path}", {"Authorization": f"Bearer {access['token']}"}))
            await asyncio.sleep(1.0)  # that call counted, too
            began = time.monotonic()
            calls = [http.get(places[number % 3][0], headers=places[number % 3][1]) for number in range(90)]
            answers = await asyncio.gather(*calls)
            took = time.monotonic() - began
            statuses = [answer.status_code for answer in answers]
            print(f"{statuses.count(200)} of {len(answers)} calls allowed in {took:.2f} s")
            assert set(statuses) == {200, 429}
            assert CALLS_PER_S <= statuses.count(200) <= CALLS_PER_S * (1 + took) + 1
            for answer in answers:
                assert answer.headers["RateLimit-Policy"] == f'"tenant";q={CALLS_PER_S};w=1'
        await boss.set_limits("callers", LimitsBody())
        await asyncio.sleep(HEARD_WITHIN_S)
    await fleet.settle()


async def test_calls_while_redis_is_away(fleet: Fleet) -> None:
    """Sandboxes go on, and each member counts for itself."""
    async with tenant(fleet, "alone") as callers, AsyncExitStack() as stack:
        boss = Administrator(fleet.coordinators[0].url, KEY)
        stack.push_async_callback(boss.close)
        session = await callers.clients[0].create()
        await session.run("true")
        await boss.set_limits("alone", LimitsBody(calls_per_s=CALLS_PER_S))
        await asyncio.sleep(HEARD_WITHIN_S)
        fleet.redis.kill()
        try:
            assert (await session.run("echo on")).output == "on\n"
            began = time.monotonic()
            runs = await asyncio.gather(*(session.run("true") for _ in range(40)), return_exceptions=True)
            took = time.monotonic() - began
            refused = [run for run in runs if isinstance(run, errors.Busy)]
            print(f"{len(runs) - len(refused)} of {len(runs)} runs allowed in {took:.2f} s without Redis")
            assert refused
            assert all(error.details["limit"] == "calls_per_s" for error in refused)
        finally:
            fleet.redis.start()

        async def back() -> bool:
            try:
                await boss.set_limits("alone", LimitsBody())
            except errors.Unavailable:
                return False
            return True

        await eventually(back, 30)
        await asyncio.sleep(HEARD_WITHIN_S)
    await fleet.settle()
