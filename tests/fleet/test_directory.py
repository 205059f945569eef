"""The directory's suite, on both implementations."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
import pytest_asyncio
from redis.asyncio import Redis

from sandlot.domain.errors import Busy
from sandlot.fleet.directory.contract import PlacementRequest, SessionEntry, WorkerReport
from sandlot.fleet.directory.encoding import pack_id
from sandlot.fleet.directory.redis_directory import RedisDirectory
from sandlot.testing.directory_suite import DirectoryHarness, DirectorySuite
from sandlot.testing.directory_suite.harness import (
    MARGIN_S,
    TIMINGS,
    Fleet,
    a_session,
    ended,
    refused,
)
from sandlot.testing.directory_suite.redis_server import RedisServer
from tests.fleet.harnesses import in_memory, in_redis

# A Redis that is started again was away for longer than this.
CLOCK_STEP_S = 0.1


class TestMemory(DirectorySuite):
    @pytest_asyncio.fixture
    async def directory_harness(self) -> DirectoryHarness:
        return in_memory()


class TestRedis(DirectorySuite):
    @pytest_asyncio.fixture
    async def directory_harness(self, redis: RedisServer) -> AsyncIterator[DirectoryHarness]:
        async with in_redis(redis.url) as harness:
            yield harness

    async def test_leaves_nothing_behind(self, fleet: Fleet, redis: RedisServer) -> None:
        """After everything has come and gone, there is nothing left in Redis that grows with use."""
        await fleet.offer("w1", warm=9)
        await fleet.settle()
        lost, _ = await fleet.create(thread="lost", idempotency_key="lost")
        buried, _ = await fleet.create(thread="buried", idempotency_key="buried")
        await fleet.create(thread="swept", idempotency_key="swept")
        lease = await fleet.offer("w2", warm=9)
        await fleet.run_for(TIMINGS.lease_s + TIMINGS.lost_after_s + MARGIN_S, dead=("w1",))
        for _ in range(2):
            given = await fleet.place(thread="lost", takes_over=lost.id)
            assert given.reservation is not None
            await fleet.directory.give_back(given.reservation)
        place = await fleet.place(takes_over=lost.id)
        anew = replace(lost, generation=2)
        await fleet.record(place, anew, "lost")
        assert await fleet.directory.bury(ended(buried))
        ended_one, _ = await fleet.create(thread="ended", idempotency_key="ended")
        await fleet.directory.record(lease, [SessionEntry(ended(ended_one), None, "ended")])
        await fleet.place(thread="abandoned", idempotency_key="abandoned", max_sessions=99)
        await fleet.run_for(TIMINGS.remember_lost_s + MARGIN_S, dead=("w1",))
        await fleet.directory.forget(lease, [anew.id])
        assert await fleet.directory.sweep() == 1
        await fleet.directory.leave(lease)
        plain = Redis.from_url(redis.url)
        left = {key async for key in plain.scan_iter(match=f"{fleet_prefix(fleet)}*")}
        await plain.aclose()
        assert {key.decode().removeprefix(fleet_prefix(fleet)) for key in left} == {"meta", "epochs"}

    async def test_lost_writes_are_noticed_although_others_followed(
        self, fleet: Fleet, redis: RedisServer
    ) -> None:
        """A replica that was promoted lacks the last writes; the next ones bring the count to where it was."""
        lease = await fleet.offer("w1")
        await fleet.settle()
        await fleet.directory.record(lease, [SessionEntry(a_session())])
        plain = Redis.from_url(redis.url)
        await plain.hincrby(f"{fleet_prefix(fleet)}w:w1", "writes", -1)
        await plain.aclose()
        await fleet.directory.record(lease, [SessionEntry(a_session())])
        assert not (await fleet.directory.report(lease, fleet.reports["w1"])).intact
        assert (await fleet.directory.report(lease, fleet.reports["w1"])).intact

    async def test_another_redis_settles_first(self, fleet: Fleet, redis: RedisServer) -> None:
        """Started again, or a replica that was promoted: it may lack what was written last."""
        await fleet.offer("w1", warm=5)
        await fleet.settle()
        assert not (await fleet.place(thread="a")).known
        plain = Redis.from_url(redis.url)
        await plain.hset(f"{fleet_prefix(fleet)}meta", "run", "0" * 40)
        await plain.aclose()
        await refused(fleet.directory.place(PlacementRequest("acme", "base", "b")), "unsettled")
        await fleet.settle()
        assert not (await fleet.place(thread="b")).known

    async def test_another_redis_settles_by_reports_alone(self, fleet: Fleet, redis: RedisServer) -> None:
        """O3: on a quiet fleet nobody asks anything meanwhile, and the first who does is not kept waiting."""
        lease = await fleet.offer("w1", warm=5)
        await fleet.settle()
        meta = f"{fleet_prefix(fleet)}meta"
        plain = Redis.from_url(redis.url)
        await plain.hset(meta, "run", "0" * 40)
        for _ in range(3):
            await asyncio.sleep(CLOCK_STEP_S)
            await fleet.directory.report(lease, fleet.reports["w1"])
            await plain.hincrby(meta, "clock", round((TIMINGS.lease_s + MARGIN_S) * 1000 / 3))
        await fleet.directory.report(lease, fleet.reports["w1"])
        assert not (await fleet.place(thread="a")).known
        # A worker that has not told everything yet is waited for, as after any other birth.
        await plain.hset(meta, "run", "0" * 40)
        await asyncio.sleep(CLOCK_STEP_S)
        await fleet.directory.report(lease, WorkerReport(complete=False))
        await refused(fleet.directory.place(PlacementRequest("acme", "base", "b")), "unsettled")
        # So is one whose place is no longer known to this Redis, and that joins first.
        await fleet.settle()
        await plain.hset(meta, "run", "0" * 40)
        await fleet.join("w2")
        await plain.hincrby(meta, "clock", round((TIMINGS.lease_s + MARGIN_S) * 1000))
        await plain.aclose()
        await fleet.directory.report(lease, fleet.reports["w1"])
        assert not (await fleet.place(thread="c")).known

    async def test_ids_without_an_entry_break_nothing(self, fleet: Fleet, redis: RedisServer) -> None:
        """R9: whatever took the entries away, as a hand in Redis or a half-restored copy, what is left of
        them must not stop every call of everybody, and it goes with time.
        """
        lease = await fleet.offer("w1", warm=30)
        await fleet.settle()
        prefix = fleet_prefix(fleet)
        sessions = [(await fleet.create(thread=f"t{n}"))[0] for n in range(8)]
        await fleet.directory.record(lease, [SessionEntry(ended(session)) for session in sessions[:6]])
        for n in range(6):
            await fleet.place(thread=f"promised-{n}")
        plain = Redis.from_url(redis.url)
        orphans = [pack_id(session.id) for session in sessions[:7]]
        await plain.hdel(f"{prefix}s", *orphans)
        async for key in plain.scan_iter(match=f"{prefix}r:*"):
            await plain.delete(key)
        assert [found.session for found in (await fleet.directory.page("acme")).found] == [sessions[7]]
        await fleet.run_for(TIMINGS.remember_ended_s + MARGIN_S)
        assert await plain.zcard(f"{prefix}ended") == 0
        assert await plain.zcard(f"{prefix}r") == 0
        assert await plain.zcard(f"{prefix}t:acme:s") == 1
        await fleet.run_for(
            TIMINGS.lease_s + TIMINGS.lost_after_s + TIMINGS.remember_lost_s + MARGIN_S, dead=("w1",)
        )
        await fleet.offer("w2")
        assert await fleet.directory.sweep() == 2
        assert not await plain.exists(f"{prefix}w:w1:s", f"{prefix}w:w1")
        await plain.aclose()

    async def test_counters_that_members_of_an_earlier_version_left_wrong(
        self, fleet: Fleet, redis: RedisServer
    ) -> None:
        """They end sessions and reservations without counting. A tenant is not refused for what is gone."""
        await fleet.offer("w1")
        await fleet.settle()
        await fleet.create(max_sessions=3, created_by="k")
        use = f"{fleet_prefix(fleet)}use:t:acme"
        plain = Redis.from_url(redis.url)
        await plain.hincrby(use, "n", 40)
        await plain.aclose()
        await fleet.create(max_sessions=3)
        assert (await fleet.directory.use("t:acme")).sessions == 2
        await fleet.create(max_sessions=3)
        with pytest.raises(Busy):
            await fleet.create(max_sessions=3)


def fleet_prefix(fleet: Fleet) -> str:
    assert isinstance(fleet.directory, RedisDirectory)
    return fleet.directory.calls._prefix
