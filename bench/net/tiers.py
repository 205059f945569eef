"""Throughput and latency of one sandbox's network, beside a direct connection, in turns."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench.rig import p50, progress
from sandlot import AsyncClient, AsyncSession

PROGRAM = Path(__file__).with_name("program.py")
ENVIRONMENTS = {"runc": "base", "runsc": "gvisor"}
HOWS = ("request", "tunnel")  # a request to the proxy, and CONNECT, as https uses it
BATCH = 10
SMALL_BYTES = 1000


@dataclass
class Samples:
    """``direct`` and ``proxied`` have a list for each of ``HOWS``."""

    direct: dict[str, list[float]] = field(default_factory=lambda: {how: [] for how in HOWS})
    proxied: dict[str, list[float]] = field(default_factory=lambda: {how: [] for how in HOWS})


@dataclass
class TierFigures:
    speed: Samples = field(default_factory=Samples)
    latency: Samples = field(default_factory=Samples)

    @property
    def mb_per_s(self) -> float:
        """Of the slower way."""
        return min(p50(samples) for samples in self.speed.proxied.values())

    @property
    def times_slower(self) -> float:
        """A download from a sandbox beside a direct one."""
        return max(p50(self.speed.direct[how]) / p50(self.speed.proxied[how]) for how in HOWS)

    @property
    def times_later(self) -> float:
        """A small request from a sandbox beside a direct one."""
        return max(p50(self.latency.proxied[how]) / p50(self.latency.direct[how]) for how in HOWS)

    @property
    def added_p50_ms(self) -> float:
        """Of the slower way."""
        latency = self.latency
        return max(p50(latency.proxied[how]) - p50(latency.direct[how]) for how in HOWS)


async def _direct(*arguments: str) -> list[float]:
    environ = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    process = await asyncio.create_subprocess_exec(
        sys.executable, PROGRAM, *arguments, env=environ, stdout=asyncio.subprocess.PIPE
    )
    printed, _ = await process.communicate()
    assert process.returncode == 0
    return _numbers(printed.decode())


async def _inside(session: AsyncSession, *arguments: str) -> list[float]:
    result = await session.run(f"python3 program.py {' '.join(arguments)}")
    assert result.exit_code == 0, result
    return _numbers(result.stdout)


def _numbers(printed: str) -> list[float]:
    return [float(line) for line in printed.split()]


async def measure_tier(
    client: AsyncClient, tier: str, port: int, *, rounds: int, megabytes: int
) -> TierFigures:
    figures = TierFigures()
    async with client.create(ENVIRONMENTS[tier], network=[f"127.0.0.1:{port}"]) as session:
        await session.files.write("program.py", PROGRAM.read_bytes())
        large = ("download", f"http://127.0.0.1:{port}/bytes/{megabytes * 1_000_000}", "1")
        small = ("requests", f"http://127.0.0.1:{port}/bytes/{SMALL_BYTES}", str(BATCH))
        for number in range(rounds):
            for how in HOWS:
                for (what, url, count), samples in ((large, figures.speed), (small, figures.latency)):
                    samples.direct[how] += await _direct(what, how, url, count)
                    samples.proxied[how] += await _inside(session, what, how, url, count)
            progress(f"{tier}: {number + 1} of {rounds} rounds")
    return figures


def rows(figures: dict[str, TierFigures]) -> Sequence[Sequence[str]]:
    """A table of all that was measured."""
    lines = [["", *(f"{tier}, {how}" for tier in figures for how in HOWS)]]
    for name, kind, side in (
        ("MB/s through the proxy, p50", "speed", "proxied"),
        ("MB/s direct, p50", "speed", "direct"),
        ("ms through the proxy, p50", "latency", "proxied"),
        ("ms direct, p50", "latency", "direct"),
    ):
        cells = [
            f"{p50(getattr(getattr(each, kind), side)[how]):.1f}" for each in figures.values() for how in HOWS
        ]
        lines.append([name, *cells])
    return lines
