"""``bench``: how fast the server's sandboxes are, beside plain Docker on the same machine, in turn and in one
run.

Paced as an agent's calls are: back to back they would measure the machine being full. Ratios are what counts;
the milliseconds are the machine's.
"""

from __future__ import annotations

import asyncio
import shutil
import statistics
import subprocess
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

import typer

from sandlot.cli.catalogue import environment_of
from sandlot.cli.connection import with_client
from sandlot.cli.display import print_json, print_table
from sandlot.domain.errors import Unavailable, Unsupported
from sandlot.domain.execution import Output
from sandlot.domain.limits import MIB, LimitChange

if TYPE_CHECKING:
    from sandlot.client.async_client import AsyncClient
    from sandlot.client.async_session import AsyncSession
    from sandlot.domain.pool import PoolStats

PACE_SECONDS = 0.05
REFILL_WITHIN_SECONDS = 30.0
WARM_UP_ROUNDS = 2
# What the server gives a sandbox, as far as the command line can say it.
DOCKER_OPTIONS = [
    *("--network", "none", "--memory", "512m", "--memory-swap", "512m", "--cpus", "0.5"),
    *("--pids-limit", "256", "--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges"),
]
SERIES = (
    "create",
    "create_custom",
    "first_output",
    "exec",
    "docker_create",
    "docker_first_output",
    "docker_exec",
)


@dataclass
class Samples:
    """Milliseconds, by what was measured."""

    values: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in SERIES})

    def p50(self, name: str) -> float:
        return statistics.median(self.values[name])

    def figures(self) -> dict[str, float]:
        figures = {f"{name}_p50_ms": self.p50(name) for name in SERIES}
        for name in ("create", "create_custom", "first_output", "exec"):
            against = "docker_create" if name == "create_custom" else f"docker_{name}"
            figures[f"{name}_ratio"] = self.p50(against) / self.p50(name)
        return figures


def register(app: typer.Typer) -> None:
    app.command()(bench)


def bench(
    ctx: typer.Context,
    rounds: Annotated[int, typer.Option(min=3, max=1000, help="How often each thing is measured.")] = 30,
    environment: Annotated[str, typer.Option("--environment", help="The environment.")] = "base",
    as_json: Annotated[bool, typer.Option("--json", help="JSON instead of tables.")] = False,
) -> None:
    """Measure creates and commands on the server, beside `docker` on this machine."""
    if shutil.which("docker") is None:
        raise Unsupported("bench compares with the docker command, which is not on this machine")
    figures = with_client(ctx, lambda client: measure(client, environment, rounds, progress=not as_json))
    if as_json:
        print_json({name: round(value, 3) for name, value in figures.items()})
        return
    print_table(
        ("", "sandlot, p50 ms", "docker, p50 ms", "times faster"),
        [
            [
                title,
                *(
                    f"{value:.1f}"
                    for value in (figures[ours], figures[theirs], figures[theirs] / figures[ours])
                ),
            ]
            for title, ours, theirs in (
                ("create (docker create + start)", "create_p50_ms", "docker_create_p50_ms"),
                ("create with own env and memory", "create_custom_p50_ms", "docker_create_p50_ms"),
                ("create to first output (run + exec)", "first_output_p50_ms", "docker_first_output_p50_ms"),
                ("echo hi (docker exec)", "exec_p50_ms", "docker_exec_p50_ms"),
            )
        ],
    )
    print_table(("pool", ""), [["hit rate", f"{figures['pool_hit_rate']:.0%}"]])


async def measure(client: AsyncClient, environment: str, rounds: int, *, progress: bool) -> dict[str, float]:
    from rich.console import Console
    from rich.progress import track

    image = environment_of(await client.catalogue(), environment).image
    before = (await client.health()).pools.get(environment)
    if before is None:
        raise Unavailable(f"no worker has a pool of {environment} now; `sandlot fleet workers` shows them")
    samples = Samples()
    console = Console(stderr=True)
    numbers = range(rounds + WARM_UP_ROUNDS)
    for number in track(numbers, "measuring", console=console, transient=True, disable=not progress):
        spent = await one_round(client, environment, image)
        if number >= WARM_UP_ROUNDS:
            for name, value in spent.items():
                samples.values[name].append(value)
    after = (await client.health()).pools.get(environment, before)
    return {**samples.figures(), "pool_hit_rate": _hit_rate(before, after), "rounds": float(rounds)}


def _hit_rate(before: PoolStats, after: PoolStats) -> float:
    hits = after.hits - before.hits
    misses = sum(after.misses.values()) - sum(before.misses.values())
    return hits / max(1, hits + misses)


async def one_round(client: AsyncClient, environment: str, image: str) -> dict[str, float]:
    """Ours and Docker's in turn, so that whatever else the machine does meets both."""
    spent: dict[str, float] = {}
    session = await _timed(spent, "create", client, environment, lambda: client.create(environment))
    spent["exec"] = await _exec_ms(session)
    await session.delete()
    custom = await _timed(
        spent,
        "create_custom",
        client,
        environment,
        lambda: client.create(environment, env={"NAME": "value"}, limits=LimitChange(memory_bytes=400 * MIB)),
    )
    await custom.delete()

    async def create_and_print() -> AsyncSession:
        made = await client.create(environment)
        async for event in made.stream("echo hi"):
            if isinstance(event, Output):
                return made
        raise AssertionError("echo printed nothing")

    first = await _timed(spent, "first_output", client, environment, create_and_print)
    await first.delete()
    await asyncio.to_thread(_docker_round, spent, image)
    return spent


async def _timed(
    spent: dict[str, float],
    name: str,
    client: AsyncClient,
    environment: str,
    make: Callable[[], Awaitable[AsyncSession]],
) -> AsyncSession:
    await _refilled(client, environment)
    began = time.perf_counter()
    session = await make()
    spent[name] = (time.perf_counter() - began) * 1000
    return session


async def _exec_ms(session: AsyncSession) -> float:
    await session.run(["true"])
    await asyncio.sleep(PACE_SECONDS)
    began = time.perf_counter()
    result = await session.run(["echo", "hi"])
    spent = (time.perf_counter() - began) * 1000
    assert result.output == "hi\n", result
    return spent


async def _refilled(client: AsyncClient, environment: str) -> None:
    """Paced: the next create comes when the pool has had its time, as with people who think in between."""
    deadline = time.monotonic() + REFILL_WITHIN_SECONDS
    while time.monotonic() < deadline:
        await asyncio.sleep(PACE_SECONDS)
        pool = (await client.health()).pools[environment]
        if pool.ready and not pool.making:
            return


def _docker_round(spent: dict[str, float], image: str) -> None:
    name = f"sandlot-bench-{time.time_ns()}"
    try:
        began = time.perf_counter()
        _docker("create", "--name", name, *DOCKER_OPTIONS, image, "sleep", "600")
        _docker("start", name)
        spent["docker_create"] = (time.perf_counter() - began) * 1000
        time.sleep(PACE_SECONDS)
        began = time.perf_counter()
        _docker("exec", name, "echo", "hi")
        spent["docker_exec"] = (time.perf_counter() - began) * 1000
        _docker("rm", "-f", name)
        time.sleep(PACE_SECONDS)
        began = time.perf_counter()
        _docker("run", "-d", "--name", name, *DOCKER_OPTIONS, image, "sleep", "600")
        _docker("exec", name, "echo", "hi")
        spent["docker_first_output"] = (time.perf_counter() - began) * 1000
    finally:
        _docker("rm", "-f", name, check=False)


def _docker(*arguments: str, check: bool = True) -> None:
    try:
        subprocess.run(["docker", *arguments], check=check, capture_output=True, timeout=120)
    except subprocess.CalledProcessError as error:
        raise Unsupported(
            f"`docker {arguments[0]}` failed here: {error.stderr.decode(errors='replace').strip()[:300]}"
        ) from error
