"""What keys, tenants, limits and the history cost: creates and commands beside a server without them.

Two servers run side by side and take turns, so that both meet the same machine.
"""

from __future__ import annotations

import argparse
import asyncio
import time

from bench.callers.tenants import ADMINISTRATOR, new_key
from bench.rig import Bar, ProcessorTime, p50, progress, report_bars
from bench.server import Served, serving
from sandlot import AsyncClient, AsyncSession

BAR = 1.15
POOL = 4
# Far above what the benchmark uses: each call is counted, and none is refused.
LIMITS = "sessions=1000 cpus=1000 memory_mb=1000000 execs=1000 creates_per_s=10000 calls_per_s=10000"


async def one_create(client: AsyncClient, server: Served) -> float:
    """A create with a warm sandbox ready, in milliseconds."""
    await server.wait_warm(1)
    began = time.perf_counter()
    session = await client.create()
    took = (time.perf_counter() - began) * 1000
    await session.delete()
    return took


async def one_exec(session: AsyncSession) -> float:
    began = time.perf_counter()
    result = await session.run("true")
    assert result.exit_code == 0
    return (time.perf_counter() - began) * 1000


async def measure(rounds: int) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    async with (
        serving(pool_size=POOL, min_pool_size=POOL, history="false") as plain,
        serving(pool_size=POOL, min_pool_size=POOL, api_key=ADMINISTRATOR, tenant_limits=LIMITS) as keyed,
    ):
        key = await new_key(keyed.url, "acme")
        async with AsyncClient(plain.url) as without, AsyncClient(keyed.url, api_key=key) as with_limits:
            sessions = {"without": await without.create(), "with": await with_limits.create()}
            creates: dict[str, list[float]] = {"without": [], "with": []}
            execs: dict[str, list[float]] = {"without": [], "with": []}
            servers = {"without": (without, plain), "with": (with_limits, keyed)}
            for number in range(rounds):
                order = list(servers) if number % 2 else list(servers)[::-1]
                for name in order:
                    execs[name] += [await one_exec(sessions[name]) for _ in range(10)]
                    creates[name].append(await one_create(*servers[name]))
                if number % 10 == 9:
                    progress(f"{number + 1} of {rounds} rounds")
            for session in sessions.values():
                await session.delete()
    return creates, execs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rounds", type=int, default=50)
    arguments = parser.parse_args()
    before = ProcessorTime.now()
    creates, execs = asyncio.run(measure(arguments.rounds))
    stolen = ProcessorTime.now().stolen_since(before)
    bars = []
    for what, times in (("create", creates), ("exec", execs)):
        ratio = p50(times["with"]) / p50(times["without"])
        seen = f"{ratio:.2f} ({p50(times['with']):.2f} ms beside {p50(times['without']):.2f} ms)"
        bars.append(Bar(what, seen, f"<= {BAR}", ratio <= BAR))
    if not arguments.json:
        print(f"{stolen:.1%} of the processor time went to others")
    raise SystemExit(report_bars(bars, as_json=arguments.json, stolen=stolen))


if __name__ == "__main__":
    main()
