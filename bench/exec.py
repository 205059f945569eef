"""Compares `echo hi` through the agent with `docker exec` in the same container, alternately.

The program alone is compared with `docker exec C echo hi`, and a bash command with
`docker exec C bash -c 'echo hi'`. Commands are paced like those of an AI agent: back-to-back commands would
only measure how the sandbox's half core is throttled.
"""

from __future__ import annotations

import asyncio
import time

from bench.rig import docker, open_provider, p50, p99, run_on_tiers, spec_for
from sandlot.domain.environment import Tier
from sandlot.domain.execution import ExecRequest
from sandlot.providers.base import Sandbox

PACE_SECONDS = 0.05
WARM_UP = 5


async def timed_exec(sandbox: Sandbox, **options: object) -> float:
    begin = time.perf_counter()
    result = await sandbox.run(ExecRequest(**options))  # type: ignore[arg-type]
    spent = time.perf_counter() - begin
    assert result.stdout == b"hi\n", result
    return spent * 1000


async def timed_docker_exec(sandbox: Sandbox, *argv: str) -> float:
    begin = time.perf_counter()
    await asyncio.to_thread(docker, "exec", f"sandlot-{sandbox.id}", *argv)
    return (time.perf_counter() - begin) * 1000


async def measure(tier: Tier, rounds: int) -> dict[str, float]:
    samples: dict[str, list[float]] = {
        "exec": [],
        "docker_exec": [],
        "bash": [],
        "docker_bash": [],
        "shell": [],
    }
    async with open_provider() as provider:
        sandbox = await provider.create(spec_for(tier))
        for number in range(rounds + WARM_UP):
            for name, once in (
                ("exec", timed_exec(sandbox, argv=("echo", "hi"))),
                ("docker_exec", timed_docker_exec(sandbox, "echo", "hi")),
                ("bash", timed_exec(sandbox, command="echo hi")),
                ("docker_bash", timed_docker_exec(sandbox, "bash", "-c", "echo hi")),
                ("shell", timed_exec(sandbox, command="echo hi", shell="bench")),
            ):
                spent = await once
                if number >= WARM_UP:
                    samples[name].append(spent)
                await asyncio.sleep(PACE_SECONDS)
    figures = {f"{name}_p50_ms": p50(values) for name, values in samples.items()}
    figures["exec_p99_ms"] = p99(samples["exec"])
    figures["ratio"] = figures["docker_exec_p50_ms"] / figures["exec_p50_ms"]
    figures["bash_ratio"] = figures["docker_bash_p50_ms"] / figures["bash_p50_ms"]
    return figures


if __name__ == "__main__":
    asyncio.run(run_on_tiers(__doc__, measure, rounds=60))
