"""One chaos run: a fleet, its clients, the faults, and the history of all of them."""

from __future__ import annotations

import asyncio
import contextlib
import random
import shutil
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.chaos.clients import ChaosClient, KnownSession
from bench.chaos.faults import Faults
from bench.chaos.history import Event, Recorder
from bench.chaos.settling import settle
from bench.fleet.rig import Fleet, fleet
from bench.rig import progress, rss_bytes
from sandlot.domain.errors import SandlotError
from sandlot.domain.service import SandboxService

# Short, so that one minute covers both workers that return in time and workers that are given up.
LEASE_S = 3.0
LOST_AFTER_S = 9.0
WORKER_SETTINGS = {
    "pool_size": 2,
    "min_pool_size": 1,
    "max_pool_size": 3,
    "orphan_grace_s": 2,
    "drain_timeout_s": 5,
}
SAMPLE_EVERY_S = 2.0
# A process that is still starting is small. Its later samples would look like a leak.
SAMPLED_AFTER_S = 10.0
FINAL_ATTEMPTS = 5
FIRST_FAULT_AFTER_S = 5.0


@dataclass(frozen=True, slots=True)
class Plan:
    """``pause_s`` is the least and the most time between faults.

    ``faults`` off tests the checker alone.
    """

    minutes: float = 15.0
    workers: int = 3
    coordinators: int = 2
    clients: int = 8
    seed: int = 1
    pause_s: tuple[float, float] = (10.0, 30.0)
    faults: bool = True
    bug: str | None = None


async def run(plan: Plan, history: Path) -> None:
    """Runs the plan and writes the history, with the members' logs beside it."""
    async with fleet(
        workers=plan.workers,
        coordinators=plan.coordinators,
        owner="test-chaos",
        lease_s=LEASE_S,
        lost_after_s=LOST_AFTER_S,
        # The first coordinator sends clients straight to the workers; the second forwards their
        # calls.
        direct=(True, False),
        settings=WORKER_SETTINGS,
    ) as members:
        try:
            with history.open("w", buffering=1) as file:
                await _run(plan, members, Recorder(file))
        finally:
            logs = history.with_suffix(".logs")
            shutil.rmtree(logs, ignore_errors=True)
            logs.mkdir()
            for member in members.members:
                shutil.copy(member.log, logs)


async def _run(plan: Plan, members: Fleet, recorder: Recorder) -> None:
    began = time.monotonic()

    def clock() -> float:
        return time.monotonic() - began

    def finished() -> bool:
        return clock() > plan.minutes * 60

    faults = Faults(members, recorder, clock, random.Random(plan.seed))
    async with contextlib.AsyncExitStack() as stack:
        # One more client, for the final check.
        *clients, final_client = [
            ChaosClient(
                number,
                await stack.enter_async_context(_services(members)),
                recorder,
                clock,
                seed=plan.seed,
                bug=plan.bug,
            )
            for number in range(plan.clients + 1)
        ]
        sampler = asyncio.create_task(_sample_members(members, faults, recorder, clock))
        try:
            async with asyncio.TaskGroup() as group:
                for client in clients:
                    group.create_task(client.work(finished))
                if plan.faults:
                    group.create_task(_inject_faults(plan, faults, clock, finished))
        finally:
            sampler.cancel()
            await asyncio.wait({sampler})
        progress(f"{clock():6.1f} s: the load is over")
        await _final_check(final_client)
    await settle(members, recorder, clock)


async def _inject_faults(
    plan: Plan, faults: Faults, clock: Callable[[], float], finished: Callable[[], bool]
) -> None:
    rng = random.Random(-plan.seed)
    await asyncio.sleep(FIRST_FAULT_AFTER_S)
    while not finished():
        next_at = clock() + rng.uniform(*plan.pause_s)
        await faults.inject()
        await asyncio.sleep(max(0.0, next_at - clock()))


async def _sample_members(
    members: Fleet, faults: Faults, recorder: Recorder, clock: Callable[[], float]
) -> None:
    """Samples the members' memory and descriptors, and records members that die without a fault."""
    while True:
        for member in members.members:
            if member.running:
                if member.age_s >= SAMPLED_AFTER_S:
                    rss, fds = member.footprint()
                    recorder.add(Event("member", clock(), target=member.name, rss=rss, fds=fds))
            elif member.name not in faults.ended:
                recorder.add(
                    Event("died", clock(), target=member.name, message=member.log.read_text()[-500:])
                )
                member.start()
        with contextlib.suppress(OSError):
            rss = rss_bytes(members.redis.pid)
            recorder.add(Event("member", clock(), target="redis", rss=rss, fds=0))
        await asyncio.sleep(SAMPLE_EVERY_S)


@asynccontextmanager
async def _services(members: Fleet) -> AsyncIterator[dict[str, SandboxService]]:
    """Opens a client's own connections to every coordinator."""
    async with contextlib.AsyncExitStack() as stack:
        services = {}
        for number, coordinator in enumerate(members.coordinators):
            client = await stack.enter_async_context(members.client(number))
            services[coordinator.name] = await client.opened()
        yield services


async def _final_check(client: ChaosClient) -> None:
    """Asks for every session once more, so that the history contains every reported loss.

    Retries when the error says that it is retryable.
    """
    for _ in range(FINAL_ATTEMPTS):
        if found := await client.list():
            break
        await asyncio.sleep(1)
    for listed in found:
        for _ in range(FINAL_ATTEMPTS):
            answer = await client.get(KnownSession(listed.id, listed.thread, shared=True))
            if not (isinstance(answer, SandlotError) and answer.retryable):
                break
            await asyncio.sleep(1)
