"""Compares a fleet with a single server: the cost of a create through a coordinator and of a command sent
directly to its worker. Also measures how evenly sessions spread over workers.

Both are measured alternately in one run, paced like the calls of an AI agent. ``sandlot serve`` and the
fleet's worker run the same code on the same Docker, so the difference is the route.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable

from bench.fleet.rig import Fleet, fleet
from bench.rig import ProcessorTime, p50, progress
from bench.server import serving
from sandlot import AsyncClient, AsyncSession
from sandlot.domain.errors import Unavailable
from sandlot.domain.ids import new_sandbox_id, new_session_id
from sandlot.domain.session import DEFAULT_TENANT, Session
from sandlot.fleet.directory.contract import (
    Place,
    PlacementRequest,
    Room,
    SessionEntry,
    Timings,
    WorkerCard,
    WorkerReport,
)
from sandlot.fleet.directory.redis_directory import RedisDirectory
from sandlot.testing.directory_suite.redis_server import redis_server

WARM_UP = 2
EXECS_PER_ROUND = 5
PACE_S = 0.05
AT_ONCE = 6
# Time for a command that needs no coordinator. A busy machine may pause this long.
DIRECT_WITHIN_S = 8.0
SIMULATED_WORKERS = 10
SIMULATED_SESSIONS = 1000
SIMULATED_POOL = 5
SIMULATED_REFILL_S = 0.2
SIMULATED_TIMINGS = Timings(lease_s=3.0, lost_after_s=30.0)


Call = Callable[[], Awaitable[object]]


async def timed(call: Call) -> float:
    began = time.perf_counter()
    await call()
    spent = (time.perf_counter() - began) * 1000
    await asyncio.sleep(PACE_S)
    return spent


# --- the routes -----------------------------------------------------------------------------------


async def measure_routes(rounds: int) -> dict[str, float]:
    """Times creates and ``echo hi``, on a server and in the fleet, straight and by proxy."""
    creates = rounds + WARM_UP
    # The pools are large enough for all creates. Making a sandbox takes a processor, so none is
    # made while creates are measured.
    async with (
        serving(**pool_of(creates)) as served,
        fleet(workers=1, coordinators=2, direct=(True, False), settings=pool_of(2 * creates)) as members,
        served.client() as bare,
        members.client(0) as direct,
        members.client(1) as proxied,
    ):
        clients = {"bare": bare, "straight": direct, "proxied": proxied}

        async def all_warm() -> None:
            await served.wait_warm(creates)
            await members.wait_warm(2 * creates)

        progress(f"{3 * creates} sandboxes are made")
        await all_warm()
        await check_route(members, direct, by_coordinator=False)
        await check_route(members, proxied, by_coordinator=True)
        sessions = {name: await client.create() for name, client in clients.items()}
        await all_warm()
        samples = await time_in_turn(
            "exec", rounds * EXECS_PER_ROUND, {n: echo(s) for n, s in sessions.items()}
        )
        for session in sessions.values():
            await session.delete()
        await all_warm()
        before = ProcessorTime.now()
        samples |= await time_in_turn(
            "create", rounds, {name: client.create for name, client in clients.items()}
        )
        stolen = ProcessorTime.now().stolen_since(before)
    figures = {f"{name}_p50_ms": p50(values) for name, values in samples.items()}
    # Stolen time hurts a fleet most, because each of its processes waits for a processor once more.
    figures["create_stolen_share"] = stolen
    for what, name in (("create", "straight"), ("exec", "straight"), ("exec", "proxied")):
        figures[f"{what}_{name}_ratio"] = figures[f"{what}_{name}_p50_ms"] / figures[f"{what}_bare_p50_ms"]
    return figures


def pool_of(size: int) -> dict[str, int]:
    return {"pool_size": size, "min_pool_size": 0, "max_pool_size": size, "max_sessions": 4 * size}


def echo(session: AsyncSession) -> Call:
    async def call() -> None:
        assert (await session.run(["echo", "hi"])).output == "hi\n"

    return call


async def time_in_turn(what: str, rounds: int, calls: dict[str, Call]) -> dict[str, list[float]]:
    """Times each call once per round, in random order."""
    samples: dict[str, list[float]] = {f"{what}_{name}": [] for name in calls}
    for number in range(rounds + WARM_UP):
        for name in random.Random(number).sample(list(calls), len(calls)):
            spent = await timed(calls[name])
            if number >= WARM_UP:
                samples[f"{what}_{name}"].append(spent)
    return samples


async def check_route(members: Fleet, client: AsyncClient, *, by_coordinator: bool) -> None:
    """Checks a client's route: only a direct one works while all coordinators are frozen."""
    session = await client.create()
    await session.run(["true"])
    for coordinator in members.coordinators:
        coordinator.signal(signal.SIGSTOP)
    try:
        async with asyncio.timeout(DIRECT_WITHIN_S):
            await session.run(["true"])
        direct = True
    except TimeoutError:
        direct = False
    finally:
        for coordinator in members.coordinators:
            coordinator.signal(signal.SIGCONT)
    assert direct is not by_coordinator, "commands do not go the way that is to be measured"
    await session.delete()


# --- the spread -----------------------------------------------------------------------------------


async def measure_spread(sessions: int, workers: int) -> dict[str, float]:
    """Measures the spread of real sandboxes, created through two coordinators at once."""
    settings = {"pool_size": 2, "min_pool_size": 1, "max_pool_size": 4, "max_sessions": sessions}
    async with (
        fleet(workers=workers, coordinators=2, settings=settings) as members,
        members.client(0) as one,
        members.client(1) as other,
    ):
        remaining = iter(range(sessions))

        async def creates() -> None:
            for number in remaining:
                await (one, other)[number % 2].create()

        began = time.monotonic()
        await asyncio.gather(*(creates() for _ in range(AT_ONCE)))
        spent = time.monotonic() - began
        directory = members.directory()
        counts = {status.ref.id: status.recorded for status in await directory.workers()}
        await directory.close()
    progress(f"spread: {sorted(counts.values())} after {spent:.0f} s")
    return {"spread_sessions": float(sum(counts.values())), "spread_deviation": deviation(counts)}


class SimulatedWorker:
    """A worker's side of the directory, without sandboxes."""

    def __init__(self, directory: RedisDirectory, number: int) -> None:
        self.id = f"worker-{number}"
        self._directory = directory
        self._warm = SIMULATED_POOL
        self._sessions = 0
        self._refills: set[asyncio.Task[None]] = set()

    async def join(self) -> None:
        card = WorkerCard(self.id, f"http://{self.id}:8000", "1")
        self._lease = await self._directory.join(card, self.id)
        await self.report()

    async def report(self) -> None:
        room = Room(self._warm, SIMULATED_SESSIONS - self._sessions)
        await self._directory.report(self._lease, WorkerReport({"base": room}, self._sessions))

    async def keep_reporting(self) -> None:
        while True:
            await asyncio.sleep(SIMULATED_TIMINGS.lease_s / 3)
            await self.report()

    async def open(self, place: Place) -> None:
        if self._warm:
            self._warm -= 1
            refill = asyncio.create_task(self._refill())
            self._refills.add(refill)
            refill.add_done_callback(self._refills.discard)
        self._sessions += 1
        now = time.time()
        session = Session(new_session_id(), "base", now, now, sandbox_id=new_sandbox_id())
        await self._directory.record(self._lease, [SessionEntry(session, place.reservation)])

    async def _refill(self) -> None:
        await asyncio.sleep(SIMULATED_REFILL_S)
        self._warm += 1

    async def stop(self) -> None:
        await asyncio.gather(*self._refills)


async def measure_simulated_spread(sessions: int = SIMULATED_SESSIONS) -> dict[str, float]:
    """Measures the spread over ten simulated workers and two coordinators, on a real Redis.

    They run the real directory code.
    """
    with redis_server() as server:
        directories = [RedisDirectory.open(server.url, timings=SIMULATED_TIMINGS) for _ in range(3)]
        workers = {
            worker.id: worker
            for worker in (SimulatedWorker(directories[2], number) for number in range(SIMULATED_WORKERS))
        }
        for worker in workers.values():
            await worker.join()
        reporters = [asyncio.create_task(worker.keep_reporting()) for worker in workers.values()]
        counts = Counter(dict.fromkeys(workers, 0))
        remaining = iter(range(sessions))

        async def creates() -> None:
            for number in remaining:
                place = await place_session(directories[number % 2])
                await workers[place.worker.id].open(place)
                counts[place.worker.id] += 1
                await asyncio.sleep(0.01)

        await asyncio.gather(*(creates() for _ in range(AT_ONCE)))
        for task in reporters:
            task.cancel()
        await asyncio.gather(*reporters, return_exceptions=True)
        for worker in workers.values():
            await worker.stop()
        for directory in directories:
            await directory.close()
    progress(f"simulated spread: {sorted(counts.values())}")
    return {"simulated_sessions": float(counts.total()), "simulated_deviation": deviation(counts)}


async def place_session(directory: RedisDirectory) -> Place:
    while True:
        try:
            place = await directory.place(PlacementRequest(DEFAULT_TENANT, "base"))
        except Unavailable:  # a new directory must settle first
            await asyncio.sleep(0.2)
        else:
            assert isinstance(place, Place)
            return place


def deviation(counts: dict[str, int]) -> float:
    """Returns how far the worst worker is from the even share, as a part of that share."""
    even = sum(counts.values()) / len(counts)
    return max(abs(count - even) for count in counts.values()) / even


BARS = {
    "create_straight_ratio": 1.5,
    "exec_straight_ratio": 1.1,
    "spread_deviation": 0.2,
    "simulated_deviation": 0.1,
}


async def measure(rounds: int, sessions: int, workers: int) -> dict[str, float]:
    figures = await measure_routes(rounds)
    figures |= await measure_simulated_spread()
    figures |= await measure_spread(sessions, workers)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--sessions", type=int, default=90)
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    figures = asyncio.run(measure(arguments.rounds, arguments.sessions, arguments.workers))
    if arguments.json:
        print(json.dumps(figures))
        return
    for name, value in figures.items():
        print(f"{name:24} {value:10.3f}" + (f"   at most {BARS[name]}" if name in BARS else ""))


if __name__ == "__main__":
    main()
