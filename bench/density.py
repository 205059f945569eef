"""Runs many sandboxes at once. Measures starts per second against plain Docker, and memory per sandbox.

All sandboxes must be gone at the end.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from contextlib import suppress
from pathlib import Path

import aiodocker

from bench.rig import docker, open_provider, progress, rss_bytes, run_on_tiers, spec_for
from sandlot.domain.capacity.limits import MIB
from sandlot.domain.environment import Tier
from sandlot.domain.execution import ExecRequest
from sandlot.providers.base import Sandbox
from sandlot.providers.docker.provider import DockerProvider

AT_ONCE = 8  # concurrent starts; they fill the cores, and more would only queue


async def bare_engine(container: dict[str, object], count: int) -> float:
    """Starts containers of the same configuration without the agent, and returns starts per second.

    It uses the same API and the same library.
    """
    config = {
        name: container[name]
        for name in ("Image", "Env", "User", "Hostname", "Labels", "WorkingDir")
        if name in container
    }
    config["HostConfig"] = container["HostConfig"]
    config["Entrypoint"] = ["sleep", "3600"]
    mark = secrets.token_hex(4)
    gate = asyncio.Semaphore(AT_ONCE)
    engine = aiodocker.Docker()
    try:

        async def one(number: int) -> None:
            async with gate:
                volume = f"bench-{mark}-{number}"
                await engine.volumes.create({"Name": volume, "Labels": {"sandlot.bench": mark}})
                host = dict(config["HostConfig"])  # type: ignore[call-overload]
                host["Mounts"] = [
                    {**mount, "Source": volume} if mount["Type"] == "volume" else mount
                    for mount in host["Mounts"]
                ]
                made = await engine.containers.create(
                    {**config, "HostConfig": host}, name=f"bench-{mark}-{number}"
                )
                await made.start()

        begin = time.perf_counter()
        await asyncio.gather(*(one(number) for number in range(count)))
        return count / (time.perf_counter() - begin)
    finally:

        async def remove(number: int) -> None:
            async with gate:
                with suppress(aiodocker.DockerError):
                    await engine.containers.container(f"bench-{mark}-{number}").delete(force=True)
                with suppress(aiodocker.DockerError):
                    await (await engine.volumes.get(f"bench-{mark}-{number}")).delete()

        await asyncio.gather(*(remove(number) for number in range(count)))
        await engine.close()


async def ours(provider: DockerProvider, tier: Tier, count: int) -> tuple[float, list[Sandbox]]:
    gate = asyncio.Semaphore(AT_ONCE)

    async def one() -> Sandbox:
        async with gate:
            return await provider.create(spec_for(tier))

    begin = time.perf_counter()
    sandboxes = await asyncio.gather(*(one() for _ in range(count)))
    return count / (time.perf_counter() - begin), list(sandboxes)


def available_bytes() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0


async def measure(tier: Tier, count: int) -> dict[str, float]:
    async with open_provider() as provider:
        first = await provider.create(spec_for(tier))
        container = json.loads(docker("inspect", f"sandlot-{first.id}").stdout)[0]
        container = {**container["Config"], "HostConfig": container["HostConfig"]}
        progress(f"{tier}: the bare engine starts {count}")
        bare_rate = await bare_engine(container, count)
        free_before, worker_before = available_bytes(), rss_bytes()
        progress(f"{tier}: {count} sandboxes")
        rate, sandboxes = await ours(provider, tier, count)
        await asyncio.sleep(2)
        memory = (free_before - available_bytes()) / count
        worker = (rss_bytes() - worker_before) / count
        gate = asyncio.Semaphore(20)

        async def answers(number: int, sandbox: Sandbox) -> bool:
            async with gate:
                return (
                    await sandbox.run(ExecRequest(command=f"echo {number}"))
                ).stdout == f"{number}\n".encode()

        begin = time.perf_counter()
        right = sum(
            await asyncio.gather(*(answers(number, sandbox) for number, sandbox in enumerate(sandboxes)))
        )
        answered = time.perf_counter() - begin
        begin = time.perf_counter()
        await asyncio.gather(*(provider.destroy(sandbox.id) for sandbox in sandboxes))
        removed = time.perf_counter() - begin
        left = len(await provider.list()) - 1  # without the first, whose configuration the bare engine used
    return {
        "sandboxes": count,
        "starts_per_s": rate,
        "bare_engine_starts_per_s": bare_rate,
        "ratio": rate / bare_rate,
        "memory_per_sandbox_mb": memory / MIB,
        "worker_memory_per_sandbox_kb": worker / 1024,
        "all_answered": right,
        "answer_all_s": answered,
        "remove_all_s": removed,
        "left": left,
    }


if __name__ == "__main__":
    asyncio.run(run_on_tiers(__doc__, measure, count=300))
