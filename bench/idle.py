"""Holds unused sessions for minutes and measures the server's CPU use, as a share of one core."""

from __future__ import annotations

import argparse
import asyncio
import json
import time

from bench.rig import progress
from bench.server import serving

REST_WITHIN_S = 120.0


async def measure(count: int, seconds: float) -> dict[str, float]:
    async with serving(max_sessions=2 * count, create_concurrency=8) as served, served.client() as client:
        slots = asyncio.Semaphore(8)

        async def make() -> None:
            async with slots:
                await client.create()

        began = time.monotonic()
        await asyncio.gather(*(make() for _ in range(count)))
        progress(f"{count} sessions after {time.monotonic() - began:.0f} s; now {seconds:.0f} s of nothing")
        # Wait for the pool to refill first, because that is not idle time.
        deadline = time.monotonic() + REST_WITHIN_S
        while (pool := (await client.health()).pools["base"]).making or pool.ready < pool.target:
            assert time.monotonic() < deadline, "the pool is not at rest"
            await asyncio.sleep(0.5)
        await asyncio.sleep(5)
        cpu, began = served.cpu_seconds(), time.monotonic()
        await asyncio.sleep(seconds)
        share = (served.cpu_seconds() - cpu) / (time.monotonic() - began)
        active = (await client.health()).active_sessions
        return {
            "sessions": float(active),
            "cpu_percent_of_a_core": share * 100,
            "rss_mib": served.rss_bytes() / 2**20,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    figures = asyncio.run(measure(arguments.count, arguments.seconds))
    if arguments.json:
        print(json.dumps(figures))
        return
    for name, value in figures.items():
        print(f"{name:24} {value:8.2f}")


if __name__ == "__main__":
    main()
