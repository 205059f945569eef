"""Creates sessions, runs three commands in each and deletes them, for minutes, as fast as Docker allows.

Compares the rate with plain `docker run` and `docker rm` on the same machine, measured before and after.
Nothing may leak, and memory must stay flat.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time

from bench.rig import IMAGE, docker, progress
from bench.server import Served, serving
from sandlot import AsyncClient
from sandlot.cli.bench import DOCKER_OPTIONS

AT_ONCE = 4
BARE_SECONDS = 30.0
REST_WITHIN_S = 60.0


async def bare(seconds: float) -> float:
    """Measures how many containers per second the bare engine runs and removes."""
    done = 0
    deadline = time.monotonic() + seconds

    async def caller(number: int) -> None:
        nonlocal done
        while time.monotonic() < deadline:
            name = f"sandlot-bench-{number}-{time.time_ns()}"
            await asyncio.to_thread(
                docker, "run", "-d", "--name", name, *DOCKER_OPTIONS, IMAGE, "sleep", "600"
            )
            await asyncio.to_thread(docker, "rm", "-f", name)
            done += 1

    began = time.monotonic()
    await asyncio.gather(*(caller(number) for number in range(AT_ONCE)))
    return done / (time.monotonic() - began)


async def ours(served: Served, client: AsyncClient, seconds: float) -> dict[str, float]:
    done = failed = 0
    deadline = time.monotonic() + seconds
    rss: list[int] = []

    async def caller() -> None:
        nonlocal done, failed
        while time.monotonic() < deadline:
            try:
                session = await client.create()
                for number in range(3):
                    result = await session.run(["echo", str(number)])
                    assert result.output == f"{number}\n"
                await session.delete()
                done += 1
            except Exception as error:  # noqa: BLE001  # counted and printed
                failed += 1
                progress(f"failed: {error!r}")

    async def watch() -> None:
        while time.monotonic() < deadline:
            rss.append(served.rss_bytes())
            progress(f"{done} cycles, {failed} failed, server {rss[-1] / 2**20:.1f} MiB")
            await asyncio.sleep(min(30.0, max(1.0, seconds / 10)))

    began = time.monotonic()
    await asyncio.gather(watch(), *(caller() for _ in range(AT_ONCE)))
    spent = time.monotonic() - began
    middle = rss[len(rss) // 4]
    return {
        "cycles": float(done),
        "failed": float(failed),
        "per_second": done / spent,
        "rss_growth_mib": (rss[-1] - middle) / 2**20,
    }


async def left(served: Served, client: AsyncClient) -> dict[str, float]:
    """Counts leftovers once the pool is at rest.

    A sandbox that is being made may have a container or not yet have one.
    """
    deadline = time.monotonic() + REST_WITHIN_S
    while True:
        await asyncio.sleep(3)
        health = await client.health()
        pool = health.pools["base"]
        beyond = served.containers() - pool.ready - pool.making
        if (beyond == 0 and pool.making == 0) or time.monotonic() > deadline:
            return {
                "containers_beyond_the_pool": float(beyond),
                "sessions_left": float(health.active_sessions),
            }


async def measure(seconds: float) -> dict[str, float]:
    progress(f"bare engine, {BARE_SECONDS:.0f} s")
    before = await bare(min(BARE_SECONDS, seconds))
    async with serving(pool_size=8, min_pool_size=4, max_pool_size=8) as served, served.client() as client:
        await served.wait_warm(4)
        figures = await ours(served, client, seconds)
        figures |= await left(served, client)
    after = await bare(min(BARE_SECONDS, seconds))
    figures["bare_per_second"] = (before + after) / 2
    figures["rate_ratio"] = figures["per_second"] / figures["bare_per_second"]
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    figures = asyncio.run(measure(arguments.seconds))
    if arguments.json:
        print(json.dumps(figures))
        return
    for name, value in figures.items():
        print(f"{name:28} {value:10.2f}")


if __name__ == "__main__":
    main()
