"""A noisy neighbour: one tenant floods a server up to its limits, and another one is measured.

The flood runs in a process of its own, so that only the server is shared.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import time
from contextlib import suppress

from bench.callers.tenants import ADMINISTRATOR, new_key, sessions_of
from bench.rig import Bar, ProcessorTime, p50, progress, report_bars
from bench.server import serving
from sandlot import AsyncClient, AsyncSession
from sandlot.domain.errors import SandlotError
from sandlot.wire.tenant_bodies import LimitsBody

BAR = 1.5
POOL = 6
LIMITS = LimitsBody(sessions=4, execs=2, creates_per_s=1, calls_per_s=20)
FLOODERS = 20
# Between two measurements of the quiet tenant, as a person's agent works.
PAUSE_S = 0.05


async def _flood(url: str, key: str) -> None:
    async with AsyncClient(url, api_key=key, patience_s=0) as client:
        sessions: list[AsyncSession] = []

        async def one(number: int) -> None:
            while True:
                try:
                    if number % 2:
                        session = await client.create()
                        sessions.append(session)
                        await session.run("true")
                        sessions.remove(session)
                        await session.delete()
                    elif sessions:
                        await sessions[number % len(sessions)].run("true")
                    else:
                        await asyncio.sleep(0.01)
                except SandlotError:
                    # Refused: at once again, as a client would that knows no manners.
                    await asyncio.sleep(0.01)

        await asyncio.gather(*(one(number) for number in range(FLOODERS)))


def flood(url: str, key: str) -> None:
    with suppress(KeyboardInterrupt):
        asyncio.run(_flood(url, key))


async def measured(client: AsyncClient, session: AsyncSession, rounds: int) -> dict[str, float]:
    execs, creates = [], []
    for number in range(rounds):
        began = time.perf_counter()
        await session.run("true")
        execs.append((time.perf_counter() - began) * 1000)
        if number % 5 == 0:
            began = time.perf_counter()
            other = await client.create()
            creates.append((time.perf_counter() - began) * 1000)
            await other.delete()
        await asyncio.sleep(PAUSE_S)
    return {"exec": p50(execs), "create": p50(creates)}


async def measure(rounds: int) -> tuple[dict[str, float], dict[str, float], int]:
    async with serving(pool_size=POOL, min_pool_size=POOL, api_key=ADMINISTRATOR) as server:
        noisy = await new_key(server.url, "noisy", LIMITS)
        quiet = await new_key(server.url, "quiet")
        async with AsyncClient(server.url, api_key=quiet) as client:
            session = await client.create()
            await measured(client, session, 20)
            idle = await measured(client, session, rounds)
            progress("idle measured; now the flood")
            neighbour = multiprocessing.get_context("spawn").Process(target=flood, args=(server.url, noisy))
            neighbour.start()
            try:
                await asyncio.sleep(5)
                flooded = await measured(client, session, rounds)
                count = await sessions_of(server.url, "noisy")
            finally:
                neighbour.kill()
                neighbour.join()
            await session.delete()
    return idle, flooded, count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rounds", type=int, default=200)
    arguments = parser.parse_args()
    before = ProcessorTime.now()
    idle, flooded, count = asyncio.run(measure(arguments.rounds))
    stolen = ProcessorTime.now().stolen_since(before)
    bars = [
        Bar(
            what,
            f"{flooded[what] / idle[what]:.2f} ({flooded[what]:.2f} ms beside {idle[what]:.2f} ms)",
            f"<= {BAR}",
            flooded[what] / idle[what] <= BAR,
        )
        for what in ("exec", "create")
    ]
    if not arguments.json:
        print(f"{stolen:.1%} of the processor time went to others; sessions of the noisy tenant: {count}")
    raise SystemExit(report_bars(bars, as_json=arguments.json, stolen=stolen))


if __name__ == "__main__":
    main()
