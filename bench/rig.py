"""Shared by all benchmarks: a provider with its own data directory, docker, statistics, tables."""

from __future__ import annotations

import argparse
import asyncio
import json
import secrets
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from sandlot.domain.capacity.limits import Limits
from sandlot.domain.environment import Environment, Tier
from sandlot.domain.ids import new_sandbox_id
from sandlot.providers.base import SandboxSpec
from sandlot.providers.docker.provider import DockerProvider

DOCKER = "/usr/bin/docker" if Path("/usr/bin/docker").exists() else "docker"
IMAGE = "sandlot/base:latest"
Measure = Callable[..., Awaitable[dict[str, float]]]


@asynccontextmanager
async def open_provider() -> AsyncIterator[DockerProvider]:
    data_dir = Path(tempfile.mkdtemp(prefix="sandlot-bench-"))
    provider = DockerProvider(owner=f"bench-{secrets.token_hex(4)}", data_dir=data_dir)
    try:
        yield provider
    finally:
        await asyncio.gather(*(provider.destroy(found.id) for found in await provider.list()))
        await provider.close()
        shutil.rmtree(data_dir, ignore_errors=True)


def spec_for(tier: Tier, limits: Limits | None = None) -> SandboxSpec:
    environment = Environment(name="bench", image=IMAGE, tier=tier, limits=limits or Limits())
    return SandboxSpec(id=new_sandbox_id(), environment=environment)


def docker(*arguments: str, **options: object) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([DOCKER, *arguments], check=True, capture_output=True, **options)  # type: ignore[call-overload,no-any-return]


def p50(samples: Sequence[float]) -> float:
    return statistics.median(samples)


def p99(samples: Sequence[float]) -> float:
    return sorted(samples)[min(len(samples) - 1, int(len(samples) * 0.99))]


def rss_bytes(pid: int | str = "self") -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    return 0


@dataclass(frozen=True)
class ProcessorTime:
    """Ticks of all processors since the machine started.

    ``stolen`` is time that this machine wanted and its host gave to others.
    """

    used: int
    stolen: int

    @classmethod
    def now(cls) -> ProcessorTime:
        line = Path("/proc/stat").read_text().splitlines()[0]
        user, nice, system, _idle, _waiting, interrupts, soft, stolen = map(int, line.split()[1:9])
        return cls(user + nice + system + interrupts + soft, stolen)

    def stolen_since(self, before: ProcessorTime) -> float:
        """Returns the stolen time as a share of the time that this machine wanted."""
        stolen = self.stolen - before.stolen
        return stolen / max(self.used - before.used + stolen, 1)


async def run_on_tiers(description: str | None, measure: Measure, **defaults: int) -> None:
    """Runs a benchmark's command line: its numbers as options, on each tier, as a table or JSON."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--tiers", nargs="+", default=["runc", "runsc"])
    for name, default in defaults.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    arguments = parser.parse_args()
    options = {name: getattr(arguments, name) for name in defaults}
    results: dict[str, dict[str, float]] = {}
    for tier in arguments.tiers:
        progress(f"{tier}: {options}")
        results[tier] = await measure(Tier(tier), **options)
    if arguments.json:
        print(json.dumps(results))
        return
    names = list(next(iter(results.values())))
    rows = [["", *results]] + [
        [name, *(f"{result[name]:.2f}" for result in results.values())] for name in names
    ]
    print_table(rows)


def print_table(rows: Sequence[Sequence[str]]) -> None:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


@dataclass(frozen=True)
class Bar:
    """One requirement: what was measured, the bar, and whether the measurement meets it."""

    what: str
    seen: str
    wanted: str
    held: bool


def report_bars(bars: Sequence[Bar], *, as_json: bool = False, **more: object) -> int:
    """Prints the bars and returns the exit status, 1 on a miss. ``more`` goes into the JSON too."""
    status = 0 if all(bar.held for bar in bars) else 1
    if as_json:
        print(json.dumps({"bars": [asdict(bar) for bar in bars], **more}))
        return status
    verdicts = [[bar.what, bar.seen, bar.wanted, "held" if bar.held else "MISSED"] for bar in bars]
    print_table([["", "seen", "bar", ""], *verdicts])
    return status


def progress(text: str) -> None:
    """Prints to stderr, so that the output of --json stays JSON."""
    print(text, file=sys.stderr, flush=True)
