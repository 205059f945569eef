"""`echo hi` through the agent, beside `docker exec` in the same container, in turn.

Commands are paced, as an agent's are: back to back they would measure the sandbox's half core being throttled.
"""

from __future__ import annotations

import argparse
import asyncio
import time

from bench.rig import docker, open_provider, p50, p99, progress, report, spec_for
from sandlot.domain.environment import Tier
from sandlot.domain.execution import ExecRequest
from sandlot.providers.base import Sandbox

PACE_SECONDS = 0.05
WARM_UP = 5


async def timed_exec(sandbox: Sandbox, **options: str) -> float:
    begin = time.perf_counter()
    result = await sandbox.run(ExecRequest(command="echo hi", **options))  # type: ignore[arg-type]
    spent = time.perf_counter() - begin
    assert result.stdout == b"hi\n", result
    return spent * 1000


async def timed_docker_exec(sandbox: Sandbox) -> float:
    begin = time.perf_counter()
    await asyncio.to_thread(docker, "exec", f"sandlot-{sandbox.id}", "echo", "hi")
    return (time.perf_counter() - begin) * 1000


async def measure(tier: Tier, rounds: int) -> dict[str, float]:
    ours: list[float] = []
    shells: list[float] = []
    dockers: list[float] = []
    async with open_provider() as provider:
        sandbox = await provider.create(spec_for(tier))
        for number in range(rounds + WARM_UP):
            plain = await timed_exec(sandbox)
            await asyncio.sleep(PACE_SECONDS)
            in_shell = await timed_exec(sandbox, shell="bench")
            await asyncio.sleep(PACE_SECONDS)
            by_docker = await timed_docker_exec(sandbox)
            await asyncio.sleep(PACE_SECONDS)
            if number >= WARM_UP:
                ours.append(plain)
                shells.append(in_shell)
                dockers.append(by_docker)
    return {
        "exec_p50_ms": p50(ours),
        "exec_p99_ms": p99(ours),
        "shell_p50_ms": p50(shells),
        "docker_exec_p50_ms": p50(dockers),
        "ratio": p50(dockers) / p50(ours),
    }


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--tiers", nargs="+", default=["runc", "runsc"])
    arguments = parser.parse_args()
    results: dict[str, dict[str, float]] = {}
    for tier in arguments.tiers:
        progress(f"{tier}: {arguments.rounds} rounds, paced at {PACE_SECONDS} s")
        results[tier] = await measure(Tier(tier), arguments.rounds)
    rows = [["tier", "agent p50 ms", "agent p99 ms", "in a shell p50 ms", "docker exec p50 ms", "times faster"]]
    for tier, result in results.items():
        names = ("exec_p50_ms", "exec_p99_ms", "shell_p50_ms", "docker_exec_p50_ms", "ratio")
        rows.append([tier, *(f"{result[name]:.2f}" for name in names)])
    report(rows, results, arguments.json)


if __name__ == "__main__":
    asyncio.run(main())
