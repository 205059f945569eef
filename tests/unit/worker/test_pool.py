"""Warm sandboxes: claimed once, made again, queued for fairly, and no storm when they cannot be made."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import pytest
from tests.unit.worker.conftest import ENVIRONMENT
from tests.unit.worker.scripted import Engine, ScriptedSandbox

from sandlot.domain.capacity import pool as policy
from sandlot.domain.capacity.pool import DEMAND_WINDOW_S, QUIET_S, PoolPolicy, backoff_s
from sandlot.domain.environment import Recipe
from sandlot.domain.errors import EngineTimeout, ImageMissing, Unavailable
from sandlot.domain.ids import new_sandbox_id
from sandlot.providers.base import SandboxSpec
from sandlot.testing.eventually import eventually
from sandlot.worker.options import WorkerOptions
from sandlot.worker.pool.warm_pool import WarmPool

NONE_WARM = PoolPolicy(size=0, min=0)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def pool_of(engine: Engine) -> AsyncIterator[Callable[..., WarmPool]]:
    pools = []
    provider = engine.provider()

    def build(
        sizes: PoolPolicy = NONE_WARM, clock: Callable[[], float] = time.monotonic, **options: Any
    ) -> WarmPool:
        chosen = WorkerOptions(**options)
        pool = WarmPool(
            Recipe(ENVIRONMENT, pool=sizes),
            chosen,
            make=lambda environment: provider.create(SandboxSpec(new_sandbox_id(), environment)),
            discard=lambda sandbox: provider.destroy(sandbox.id),
            slots=asyncio.Semaphore(chosen.create_concurrency),
            clock=clock,
        )
        pools.append(pool)
        return pool

    yield build
    engine.creating.release()
    for pool in pools:
        await pool.close()


async def filled(pool: WarmPool, ready: int) -> None:
    pool.fill()
    await eventually(lambda: pool.stats().ready == ready)


# --- claiming ---------------------------------------------------------------------------------


async def test_warm_ones_are_hits_and_no_two_claims_get_the_same(pool_of) -> None:
    pool = pool_of(PoolPolicy(size=5, min=2))
    await filled(pool, 5)
    claimed = [await pool.claim("a") for _ in range(5)]
    assert len({sandbox.id for sandbox in claimed}) == 5
    stats = pool.stats()
    assert (stats.hits, stats.misses) == (5, {})
    assert stats.claim_ms_p50 < 5


async def test_many_at_once_get_one_each(pool_of, engine: Engine) -> None:
    pool = pool_of(PoolPolicy(size=3, min=3), create_concurrency=3)
    engine.creating.delay_s = 0.001
    await filled(pool, 3)
    claimed = await asyncio.gather(*(pool.claim(f"tenant-{n % 4}") for n in range(40)))
    assert len({sandbox.id for sandbox in claimed}) == 40
    assert engine.creating.most_at_once == 3
    stats = pool.stats()
    assert (stats.hits, stats.misses) == (3, {"pool_empty": 37})


async def test_empty_pool_makes_one_for_who_waits(pool_of, engine: Engine) -> None:
    pool = pool_of()
    sandbox = await pool.claim("a")
    assert engine.made == [sandbox.id]
    assert pool.stats().misses == {"pool_empty": 1}


async def test_dead_one_is_replaced_within_the_same_claim(pool_of, engine: Engine) -> None:
    pool = pool_of(PoolPolicy(size=2, min=0))
    await filled(pool, 2)
    dead, alive = list(engine.sandboxes.values())
    dead.die()
    assert await pool.claim("a") is alive
    assert (pool.stats().hits, pool.stats().misses) == (1, {"warm_died": 1})
    await eventually(lambda: dead.id in engine.destroyed)


async def test_claim_among_dead_ones_only_waits_for_a_new_one(pool_of, engine: Engine) -> None:
    pool = pool_of(PoolPolicy(size=3, min=0))
    await filled(pool, 3)
    for sandbox in engine.sandboxes.values():
        sandbox.die()
    sandbox = await pool.claim("a")
    assert not sandbox.lost
    assert pool.stats().misses == {"warm_died": 3, "pool_empty": 1}


async def test_fill_replaces_the_dead(pool_of, engine: Engine) -> None:
    pool = pool_of(PoolPolicy(size=2, min=2))
    await filled(pool, 2)
    dead = next(iter(engine.sandboxes.values()))
    dead.die()
    pool.fill()
    await eventually(lambda: dead.id in engine.destroyed and pool.stats().ready == 2)
    assert len(engine.made) == 3


# --- the queue --------------------------------------------------------------------------------


async def test_tenants_take_turns(pool_of, engine: Engine) -> None:
    pool = pool_of(create_concurrency=1)
    engine.creating.delay_s = 0.002
    order: list[str] = []

    async def claim(name: str) -> None:
        await pool.claim(name.partition("-")[0])
        order.append(name)

    await asyncio.gather(*(claim(name) for name in ("loud-1", "loud-2", "loud-3", "quiet-1")))
    assert order == ["loud-1", "quiet-1", "loud-2", "loud-3"]


async def test_deadline_tells_when_to_come_back_and_not_all_at_once(pool_of, engine: Engine) -> None:
    pool = pool_of(queue_timeout_s=0.05)
    engine.creating.hold()
    refused = await asyncio.gather(*(pool.claim("a") for _ in range(20)), return_exceptions=True)
    assert {type(error) for error in refused} == {Unavailable}
    assert {error.details["reason"] for error in refused} == {"queue"}
    assert all(error.retryable and 0.7 <= error.retry_after_s <= 75 for error in refused)
    assert len({error.retry_after_s for error in refused}) > 3
    assert pool.stats().waiting == 0


async def test_the_first_sandbox_may_take_long_and_the_error_says_so(pool_of, engine: Engine) -> None:
    pool = pool_of(queue_timeout_s=0.05)
    engine.creating.hold()
    with pytest.raises(Unavailable, match=r"first sandbox was not ready within 0\.05 s"):
        await pool.claim("a")
    engine.creating.release()
    pool = pool_of(queue_timeout_s=5)
    await pool.claim("a")
    pool._options = replace(pool._options, queue_timeout_s=0.05)
    engine.creating.hold()
    with pytest.raises(Unavailable, match=r"no sandbox became available within 0\.05 s"):
        await pool.claim("a")


async def test_line_has_a_bound(pool_of, engine: Engine) -> None:
    pool = pool_of(max_waiting=3, queue_timeout_s=30)
    engine.creating.hold()
    waiting = [asyncio.create_task(pool.claim("a")) for _ in range(3)]
    await asyncio.sleep(0)
    with pytest.raises(Unavailable, match="too many"):
        await pool.claim("a")
    engine.creating.release()
    await asyncio.gather(*waiting)


async def test_one_that_gave_up_gets_nothing_and_others_do(pool_of, engine: Engine) -> None:
    pool = pool_of()
    engine.creating.hold()
    first, second = (asyncio.create_task(pool.claim("a")) for _ in range(2))
    await asyncio.sleep(0.01)
    first.cancel()
    engine.creating.release()
    sandbox = await second
    await eventually(lambda: pool.stats().making == 0)
    assert sandbox.id == engine.made[0]


# A sandbox is handed over in one step of the loop and taken in a later one. What happens in between must
# neither lose it nor hand it out twice.


async def waiting_claim(pool: WarmPool, engine: Engine) -> tuple[asyncio.Task[Any], ScriptedSandbox]:
    engine.creating.hold()
    claiming = asyncio.create_task(pool.claim("a"))
    await asyncio.sleep(0.01)
    return claiming, engine.put(new_sandbox_id())


async def test_cancelled_while_it_is_handed_over_gives_it_back(pool_of, engine: Engine) -> None:
    pool = pool_of()
    claiming, sandbox = await waiting_claim(pool, engine)
    pool._offer(sandbox)
    claiming.cancel()
    with pytest.raises(asyncio.CancelledError):
        await claiming
    assert await pool.claim("b") is sandbox


async def test_given_back_goes_to_who_waits(pool_of, engine: Engine) -> None:
    pool = pool_of()
    claiming, sandbox = await waiting_claim(pool, engine)
    other = asyncio.create_task(pool.claim("b"))
    await asyncio.sleep(0)
    pool._offer(sandbox)
    claiming.cancel()
    assert await other is sandbox


async def test_deadline_while_it_is_handed_over_loses_nothing(pool_of, engine: Engine) -> None:
    pool = pool_of(queue_timeout_s=0.05)
    claiming, sandbox = await waiting_claim(pool, engine)
    time.sleep(0.06)  # the deadline passes while the loop is busy
    pool._offer(sandbox)
    try:
        assert await claiming is sandbox
    except Unavailable:
        assert await pool.claim("b") is sandbox


async def test_claim_of_a_task_that_was_once_cancelled_is_not_given_back(pool_of, engine: Engine) -> None:
    pool = pool_of()

    async def stubborn() -> Any:
        try:
            await asyncio.sleep(10)
        except asyncio.CancelledError:
            return await pool.claim("a")

    claiming = asyncio.create_task(stubborn())
    await asyncio.sleep(0)
    claiming.cancel()
    sandbox = await claiming
    assert await pool.claim("b") is not sandbox


# --- an environment that is broken ------------------------------------------------------------


async def test_broken_image_fails_fast_with_its_cause(pool_of, engine: Engine, clock: Clock) -> None:
    pool = pool_of(clock=clock)
    engine.creating.error = ImageMissing("there is no image sandlot/base")
    for _ in range(3):
        began = time.monotonic()
        with pytest.raises(Unavailable, match="no image") as caught:
            await pool.claim("a")
        assert time.monotonic() - began < 10
        assert caught.value.details == {"reason": "environment_broken", "cause": "image_missing"}
        assert not caught.value.retryable
    assert engine.creating.calls == 1  # the others were told without another attempt
    assert pool.stats().last_failure == "there is no image sandlot/base"


async def test_attempts_at_a_broken_image_back_off(pool_of, engine: Engine, clock: Clock) -> None:
    pool = pool_of(PoolPolicy(size=5, min=5), clock=clock, create_concurrency=4)
    engine.creating.error = ImageMissing("no image")
    pool.fill()
    await eventually(lambda: pool.stats().failures == 1)
    for failures in range(1, 8):
        attempts = engine.creating.calls
        clock.now += backoff_s(failures) - 0.01
        pool.fill()
        await asyncio.sleep(0.01)
        assert engine.creating.calls == attempts
        clock.now += 0.02
        pool.fill()
        pool.fill()
        await eventually(lambda failures=failures: pool.stats().failures == failures + 1)
        assert engine.creating.calls == attempts + 1  # one at a time, though five are missing


@pytest.mark.parametrize("error", [ImageMissing("no image"), EngineTimeout("slow")], ids=lambda e: e.code)
async def test_burst_on_a_broken_engine_is_no_storm_of_attempts(
    pool_of, engine: Engine, clock: Clock, error: Exception
) -> None:
    pool = pool_of(PoolPolicy(size=5, min=5), clock=clock, create_concurrency=2, queue_timeout_s=0.2)
    engine.creating.error = error
    engine.creating.delay_s = 0.005
    refused = await asyncio.gather(*(pool.claim("a") for _ in range(50)), return_exceptions=True)
    assert {type(answer) for answer in refused} == {Unavailable}
    assert engine.creating.calls <= 2  # those that were under way when the first of them failed
    assert pool.stats().failures == 1  # one hiccup, however many it hit


async def test_recovers_by_itself_and_serves_who_waited(
    pool_of, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policy, "FIRST_BACKOFF_S", 0.05)
    pool = pool_of()
    engine.creating.error = EngineTimeout("the engine did not answer")
    claiming = asyncio.create_task(pool.claim("a"))
    await eventually(lambda: pool.stats().failures >= 1)
    assert pool.stats().waiting == 1  # it may go better: waiting is worth while
    engine.creating.error = None
    await asyncio.wait_for(claiming, 20)
    assert (pool.stats().failures, pool.stats().last_failure) == (0, "")


async def test_recovered_environment_fills_again(pool_of, engine: Engine, clock: Clock) -> None:
    pool = pool_of(PoolPolicy(size=4, min=4), clock=clock)
    engine.creating.error = ImageMissing("no image")
    pool.fill()
    await eventually(lambda: pool.stats().failures >= 1)
    engine.creating.error = None
    clock.now += 61
    await filled(pool, 4)
    assert pool.stats().failures == 0


# --- how many ---------------------------------------------------------------------------------


async def test_burst_makes_the_minimum_only_and_the_rest_in_a_quiet_moment(
    pool_of, engine: Engine, clock: Clock
) -> None:
    pool = pool_of(PoolPolicy(size=6, min=2, max=20), clock=clock)
    await filled(pool, 6)
    for _ in range(5):
        await pool.claim("a")
    await eventually(lambda: pool.stats().ready == 2)
    await asyncio.sleep(0.02)
    assert len(engine.made) == 6 + 1  # one is left, two are the least
    clock.now += QUIET_S
    await filled(pool, 6)


async def test_quiet_moment_is_noticed_without_being_asked(pool_of) -> None:
    pool = pool_of(PoolPolicy(size=3, min=0))
    await filled(pool, 3)
    for _ in range(3):
        await pool.claim("a")
    await eventually(lambda: pool.stats().ready == 3)


async def test_target_follows_demand_and_says_why(pool_of, engine: Engine, clock: Clock) -> None:
    pool = pool_of(PoolPolicy(size=3, min=2, max=12), clock=clock)
    await filled(pool, 3)
    assert "configured size" in pool.stats().target_reason
    for _ in range(6):
        await pool.claim("a")
    clock.now += 2
    await filled(pool, 9)
    assert (pool.stats().target, pool.stats().suggested_size) == (9, 9)
    assert "6 claims" in pool.stats().target_reason
    for _ in range(20):
        await pool.claim("a")
    clock.now += 2
    await filled(pool, 12)
    assert (pool.stats().target, pool.stats().suggested_size) == (12, 30)
    clock.now += DEMAND_WINDOW_S + 1
    await filled(pool, 2)
    assert "no claims" in pool.stats().target_reason
    await eventually(lambda: len(engine.sandboxes) == 26 + 2)  # the claimed ones are not touched


async def test_nobody_waits_for_a_make_that_nobody_wants(pool_of, engine: Engine) -> None:
    pool = pool_of(create_concurrency=1, queue_timeout_s=0.05)
    engine.creating.hold()
    await asyncio.gather(*(pool.claim("a") for _ in range(40)), return_exceptions=True)
    engine.creating.release()
    await eventually(lambda: pool.stats().making == 0)
    assert len(engine.made) <= 21  # the target's worth and the one under way, not one for each who left


# --- closing ----------------------------------------------------------------------------------


async def test_close_removes_what_is_warm_and_what_is_under_way(pool_of, engine: Engine) -> None:
    pool = pool_of(PoolPolicy(size=3, min=3))
    await filled(pool, 3)
    engine.creating.hold()
    await pool.claim("a")
    await asyncio.sleep(0)
    closing = asyncio.create_task(pool.close())
    await asyncio.sleep(0.01)
    engine.creating.release()
    await closing
    assert len(engine.sandboxes) == 1  # the claimed one
    assert pool.stats().ready == pool.stats().making == 0


async def test_close_tells_those_who_wait_and_those_who_come_late(pool_of, engine: Engine) -> None:
    pool = pool_of()
    claiming, _ = await waiting_claim(pool, engine)
    closing = asyncio.create_task(pool.close())
    for claim in (claiming, asyncio.wait_for(pool.claim("a"), 20)):
        with pytest.raises(Unavailable, match="shutting down"):
            await claim
    engine.creating.release()
    await closing
