"""Measures what users notice when an operator works on a fleet of three workers, two coordinators and Redis.

It restarts the workers one after another under load, as an upgrade does. It freezes a sandbox with
`docker pause`, on a single server and in the fleet. It restarts Redis while there is no load. Exits with 1
if a limit is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import secrets
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from bench.fleet.rig import Fleet, Member, fleet
from bench.rig import Bar, ProcessorTime, docker, p50, p99, progress, report_bars
from bench.server import serving
from sandlot import AsyncClient, AsyncSession
from sandlot.client.options import PATIENCE_S
from sandlot.domain.errors import SandlotError
from sandlot.domain.session import SessionState

WORKERS, COORDINATORS = 3, 2
POOL = 4
# The load during an upgrade. Each caller has its own threads and asks for its thread before every
# call, as tools do.
CALLERS = 8
PACE_S = 0.2
NEW_THREAD_EVERY = 6  # a caller's every sixth call is on a new thread
THREAD_P99_S = 6.0
BETWEEN_RESTARTS_S = 5.0
# For the wedged sandbox:
EXEC_TIMEOUT_S = 5.0
ANSWERED_AFTER_S = 10.0
STATE_WITHIN_S = 30.0


@dataclass
class Load:
    threads: list[float] = field(default_factory=list)  # seconds of each `thread()`
    execs: list[float] = field(default_factory=list)
    refused_threads: list[str] = field(default_factory=list)
    refused_execs: list[str] = field(default_factory=list)


async def _call(client: AsyncClient, thread: str, load: Load) -> AsyncSession | None:
    began = time.monotonic()
    try:
        session = await client.thread(thread)
        load.threads.append(time.monotonic() - began)
    except SandlotError as error:
        load.refused_threads.append(f"{thread} after {time.monotonic() - began:.1f} s: {error!r}")
        return None
    began = time.monotonic()
    try:
        mark = secrets.token_hex(4)
        result = await session.run(["echo", mark])
        assert result.output == f"{mark}\n", result
        load.execs.append(time.monotonic() - began)
    except SandlotError as error:
        load.refused_execs.append(f"{thread} after {time.monotonic() - began:.1f} s: {error!r}")
    return session


async def _caller(members: Fleet, number: int, load: Load, over: asyncio.Event) -> None:
    """Makes calls until the load ends. Half of the callers use each coordinator."""
    calls = 0
    async with members.client(number % COORDINATORS) as client:
        while not over.is_set():
            calls += 1
            new = calls % NEW_THREAD_EVERY == 0
            session = await _call(client, f"load-{number}-{calls if new else 0}", load)
            if new and session is not None:
                try:
                    await session.delete()
                except SandlotError as error:
                    progress(f"delete: {error!r}")
            await asyncio.sleep(PACE_S)


async def _session_on(worker: Member, client: AsyncClient) -> AsyncSession:
    elsewhere: list[AsyncSession] = []
    try:
        for _ in range(8 * WORKERS):
            session = await client.create()
            if session.info.sandbox_id in await asyncio.to_thread(worker.containers):
                return session
            elsewhere.append(session)
        raise AssertionError(f"no create came to {worker.name}")
    finally:
        for session in elsewhere:
            await session.delete()


async def upgrade(members: Fleet) -> list[Bar]:
    """Restarts each worker in turn with SIGTERM, while a long command runs on each."""
    load, over = Load(), asyncio.Event()
    async with members.client() as client:
        sessions = [await _session_on(worker, client) for worker in members.workers]
        long_runs = [
            asyncio.create_task(
                session.run("echo ran >>ran; until test -e told; do sleep 0.2; done; wc -l <ran")
            )
            for session in sessions
        ]
        callers = [asyncio.create_task(_caller(members, number, load, over)) for number in range(CALLERS)]
        await asyncio.sleep(BETWEEN_RESTARTS_S)
        stops, starts = [], []
        for worker in members.workers:
            began = time.monotonic()
            await worker.terminate()
            stops.append(time.monotonic() - began)
            began = time.monotonic()
            worker.start()
            await worker.wait_ready()
            starts.append(time.monotonic() - began)
            progress(f"{worker.name}: stopped in {stops[-1]:.1f} s, ready again in {starts[-1]:.1f} s")
            await asyncio.sleep(BETWEEN_RESTARTS_S)
        over.set()
        await asyncio.gather(*callers)
        for session in sessions:
            await session.run("touch told")
        survived = await asyncio.gather(*long_runs, return_exceptions=True)
        for session in sessions:
            await session.delete()
    for refused in (*load.refused_threads, *load.refused_execs):
        progress(f"refused: {refused}")
    once = [each for each in survived if not isinstance(each, BaseException) and each.output.strip() == "1"]
    times = f"{max(stops):.1f}, {max(starts):.1f}"
    return [
        *judge_upgrade(load, len(once), len(long_runs)),
        Bar("upgrade: a worker's stop, start; max s", times, "", True),
    ]


def with_missed_calls(spent: list[float]) -> list[float]:
    """Adds the calls that a caller did not make because it still waited for the one before.

    Without them, a worker that is away for long costs each caller one call of hundreds, and no
    percentile shows it.
    """
    missed = [call - pace * PACE_S for call in spent for pace in range(1, int(call / PACE_S) + 1)]
    return [*spent, *missed]


def judge_upgrade(load: Load, once: int, long: int) -> list[Bar]:
    """Judges the load. ``once`` of the ``long`` commands survived and ran exactly once."""
    slowest = p99(with_missed_calls(load.threads))
    return [
        Bar(
            "upgrade: thread() calls, failed",
            f"{len(load.threads) + len(load.refused_threads)}, {len(load.refused_threads)}",
            "none failed",
            not load.refused_threads,
        ),
        Bar(
            "upgrade: thread() p50, p99, max s; p99 at any time",
            f"{p50(load.threads):.3f}, {p99(load.threads):.2f}, {max(load.threads):.2f}; {slowest:.2f}",
            f"the last under {THREAD_P99_S:g}",
            slowest < THREAD_P99_S,
        ),
        Bar(
            "upgrade: commands, failed; max s",
            f"{len(load.execs) + len(load.refused_execs)}, {len(load.refused_execs)}; {max(load.execs):.2f}",
            "none failed",
            not load.refused_execs,
        ),
        Bar("upgrade: long commands that went on, and ran once", f"{once} of {long}", "all", once == long),
    ]


async def _seconds_until(condition: Callable[[], Awaitable[bool]]) -> float | None:
    """Returns the seconds until the condition holds, or None if it never does."""
    began = time.monotonic()
    while time.monotonic() - began < STATE_WITHIN_S:
        if await condition():
            return time.monotonic() - began
        await asyncio.sleep(0.1)
    return None


async def wedge(client: AsyncClient, where: str) -> list[Bar]:
    """Pauses a sandbox's container: the connection stays open and nothing answers."""
    session = await client.create()
    assert (await session.run(["echo", "well"])).output == "well\n"
    container = f"sandlot-{session.info.sandbox_id}"

    async def has_state(state: SessionState) -> bool:
        return (await session.refresh()).state is state

    await asyncio.to_thread(docker, "pause", container)
    try:
        began = time.monotonic()
        try:
            answer = f"a result: {await session.run('true', timeout_s=EXEC_TIMEOUT_S)}"
        except SandlotError as error:
            answer = error.code
        answered = time.monotonic() - began
        silent = await _seconds_until(lambda: has_state(SessionState.UNRESPONSIVE))
    finally:
        await asyncio.to_thread(docker, "unpause", container)
    well = await _seconds_until(lambda: has_state(SessionState.ACTIVE))
    after = await session.run(["echo", "well"])
    await session.delete()
    bar = EXEC_TIMEOUT_S + ANSWERED_AFTER_S
    return [
        Bar(
            f"wedged, {where}: a command with a timeout of {EXEC_TIMEOUT_S:g} s is answered after, s",
            f"{answered:.1f} ({answer})",
            f"{bar:g}",
            answered <= bar and answer == "sandbox_unresponsive",
        ),
        Bar(
            f"wedged, {where}: then unresponsive after, s",
            "never" if silent is None else f"{silent:.1f}",
            f"{STATE_WITHIN_S:g}",
            silent is not None,
        ),
        Bar(
            f"wedged, {where}: woken, active again after, s",
            "never" if well is None else f"{well:.1f}",
            f"{STATE_WITHIN_S:g}, and works",
            well is not None and after.output == "well\n",
        ),
    ]


async def redis_restart(members: Fleet, pause_s: float) -> list[Bar]:
    """Restarts Redis while there is no load, then creates once with the SDK's usual patience."""
    bars = []
    for wait_s in (pause_s, 0.0):
        await asyncio.to_thread(members.redis.kill)
        await asyncio.to_thread(members.redis.start)
        await asyncio.sleep(wait_s)
        async with members.client() as client:
            began = time.monotonic()
            try:
                session = await client.create()
                spent = time.monotonic() - began
                well = (await session.run(["echo", "well"])).output == "well\n"
                await session.delete()
                bars.append(judge_create(wait_s, spent, "" if well else "but does not work"))
            except SandlotError as error:
                bars.append(judge_create(wait_s, time.monotonic() - began, error.code))
    return bars


def judge_create(wait_s: float, spent: float, failed: str) -> Bar:
    return Bar(
        f"Redis restarted, {wait_s:g} s later the first create takes, s",
        f"{spent:.2f} {failed}".rstrip(),
        f"succeeds within {PATIENCE_S:g}",
        not failed and spent <= PATIENCE_S,
    )


async def measure(parts: list[str], pause_s: float) -> list[Bar]:
    bars: list[Bar] = []
    before = ProcessorTime.now()
    pools: dict[str, Any] = {"pool_size": POOL, "min_pool_size": POOL, "max_pool_size": 2 * POOL}
    if "wedged" in parts:
        async with serving(**pools) as served, served.client() as client:
            await served.wait_warm(1)
            progress("a wedged sandbox, one server")
            bars += await wedge(client, "one server")
    # The first coordinator sends clients straight to the workers; the second forwards everything.
    async with fleet(
        workers=WORKERS, coordinators=COORDINATORS, direct=(True, False), settings=pools
    ) as members:
        await members.wait_warm(POOL)
        if "upgrade" in parts:
            progress("rolling upgrade")
            bars += await upgrade(members)
        if "wedged" in parts:
            for number, where in enumerate(("fleet, straight", "fleet, through a coordinator")):
                progress(f"a wedged sandbox, {where}")
                async with members.client(number) as client:
                    bars += await wedge(client, where)
        if "redis" in parts:
            progress(f"Redis is restarted, {pause_s:g} s of quiet")
            bars += await redis_restart(members, pause_s)
    bars.append(Bar("stolen by the host", f"{ProcessorTime.now().stolen_since(before):.1%}", "", True))
    return bars


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parts", nargs="+", default=["upgrade", "wedged", "redis"])
    parser.add_argument("--pause", type=float, default=40, help="seconds without load after Redis restarts")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    bars = asyncio.run(measure(arguments.parts, arguments.pause))
    sys.exit(report_bars(bars, as_json=arguments.json))


if __name__ == "__main__":
    main()
