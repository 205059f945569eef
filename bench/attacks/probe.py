"""Measures what honest users see, from a process of its own.

It runs commands in all their sandboxes in turn, and calls `/health` meanwhile.
`python -m bench.attacks.probe URL SECONDS SESSION…` prints the figures as JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from dataclasses import asdict, dataclass

import httpx

from bench.rig import p50, p99
from sandlot import AsyncClient
from sandlot.domain.errors import SandlotError

# Seconds between two commands, over all sandboxes together. That is often enough to see a stall,
# and leaves the machine time for the attack.
PACE_S = 0.05
HEALTH_PACE_S = 0.1


@dataclass(frozen=True)
class Measurements:
    execs: int
    failed: int
    exec_p50_ms: float
    exec_p99_ms: float
    health_p50_ms: float
    health_p99_ms: float
    health_max_ms: float


async def measure(url: str, seconds: float, session_ids: list[str]) -> Measurements:
    execs: list[float] = []
    failed = 0
    health: list[float] = []
    end = time.monotonic() + seconds

    async def run_commands(client: AsyncClient) -> None:
        nonlocal failed
        sessions = [await client.get(session_id) for session_id in session_ids]
        while time.monotonic() < end:
            for session in sessions:
                began = time.perf_counter()
                try:
                    result = await session.run(["echo", "hi"], timeout_s=30)
                    failed += result.output != "hi\n"
                except SandlotError as error:
                    failed += 1
                    print(repr(error), file=sys.stderr)
                execs.append((time.perf_counter() - began) * 1000)
                await asyncio.sleep(PACE_S)

    async def poll_health() -> None:
        async with httpx.AsyncClient(trust_env=False, timeout=30) as http:
            await http.get(f"{url}/health")  # opens the connection
            while time.monotonic() < end:
                began = time.perf_counter()
                (await http.get(f"{url}/health")).raise_for_status()
                health.append((time.perf_counter() - began) * 1000)
                await asyncio.sleep(HEALTH_PACE_S)

    async with AsyncClient(url) as client:
        await asyncio.gather(run_commands(client), poll_health())
    return Measurements(len(execs), failed, p50(execs), p99(execs), p50(health), p99(health), max(health))


async def from_own_process(url: str, seconds: float, session_ids: list[str]) -> Measurements:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bench.attacks.probe", url, str(seconds), *session_ids),
        stdout=asyncio.subprocess.PIPE,
    )
    printed, _ = await process.communicate()
    return Measurements(**json.loads(printed))


if __name__ == "__main__":
    print(json.dumps(asdict(asyncio.run(measure(sys.argv[1], float(sys.argv[2]), sys.argv[3:])))))
