"""Rates that processes share: as exact as those of one process, and each for itself while Redis is away."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from sandlot.domain.callers.rates import Rate
from sandlot.fleet.directory.redis_directory import RedisDirectory
from sandlot.fleet.rates import redis_rates
from sandlot.fleet.rates.redis_rates import RedisRates
from sandlot.fleet.redis.lua import Script
from sandlot.testing.directory_suite.redis_server import RedisServer, redis_server

DEADLINE_S = 20.0


async def test_processes_share_a_rate(redis: RedisServer) -> None:
    directories = [RedisDirectory.open(redis.url, cell="rates", deadline_s=DEADLINE_S) for _ in range(3)]
    processes = [RedisRates(directory.calls) for directory in directories]
    rate, began = Rate("t:acme:calls", 50.0), time.monotonic()
    taken = await asyncio.gather(*(processes[number % 3].take([rate]) for number in range(300)))
    took = time.monotonic() - began
    allowed = sum(after.wait_s == 0 for [after] in taken)
    assert 50 <= allowed <= 50 * (1 + took) + 1
    for [after] in taken:
        assert 0 <= after.wait_s <= rate.interval_s * 1.01
        assert after.full_in_s <= 1.01
    # After its longest wait, one more is allowed.
    await asyncio.sleep(max(after.wait_s for [after] in taken))
    [after] = await processes[0].take([rate])
    assert after.wait_s == 0
    for directory in directories:
        await directory.close()


async def test_all_or_none_and_nothing_left_behind(redis: RedisServer) -> None:
    directory = RedisDirectory.open(redis.url, cell="rates-2", deadline_s=DEADLINE_S)
    rates = RedisRates(directory.calls)
    many, few = Rate("many", 100.0), Rate("few", 0.5)
    first = await rates.take([many, few])
    assert [(after.wait_s, after.left) for after in first] == [(0, 99), (0, 0)]
    for _ in range(5):
        _, refused = await rates.take([many, few])
        assert 0 < refused.wait_s <= 2
    [left] = await rates.take([many])
    assert left.left >= 98
    names = await directory.calls._redis.keys("sandlot:{rates-2}:rate:*")
    assert len(names) == 2
    for name in names:
        assert 0 < await directory.calls._redis.pttl(name) <= 2001
    await directory.close()


async def test_each_for_itself_while_redis_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_rates, "ALONE_FOR_S", 0.2)
    with redis_server() as server:
        directory = RedisDirectory.open(server.url, deadline_s=1.0)
        rates, rate = RedisRates(directory.calls), Rate("r", 0.5)
        assert (await rates.take([rate]))[0].wait_s == 0
        server.kill()
        # It does not know what Redis has counted, and begins with a burst of its own.
        assert (await rates.take([rate]))[0].wait_s == 0
        began = time.monotonic()
        for _ in range(20):
            assert (await rates.take([rate]))[0].wait_s > 0
        print(f"20 calls in {time.monotonic() - began:.3f} s while Redis is away")
        server.start()
        await asyncio.sleep(0.25)
        deadline = time.monotonic() + 10
        while rates._alone_until and time.monotonic() < deadline:
            await rates.take([rate])
            await asyncio.sleep(0.25)
        assert not rates._alone_until
        await directory.close()


async def test_a_flood_costs_redis_next_to_nothing(redis: RedisServer) -> None:
    """Otherwise a caller at its limit would keep a worker's reports waiting."""
    directory = RedisDirectory.open(redis.url, cell="rates-3", deadline_s=DEADLINE_S)
    rates, rate = RedisRates(directory.calls), Rate("flood", 0.5)
    asked = 0

    async def counting(script: Script, arguments: dict[str, Any]) -> list[Any]:
        nonlocal asked
        asked += 1
        return await directory.calls(script, arguments)

    rates._calls = counting  # type: ignore[assignment]
    taken = await asyncio.gather(*(rates.take([rate]) for _ in range(1000)))
    assert sum(after.wait_s == 0 for [after] in taken) <= 2
    assert asked <= 4  # the first, a refusal, and again if this took so long that one more was allowed
    assert all(after.wait_s <= 2.01 for [after] in taken)
    await directory.close()
