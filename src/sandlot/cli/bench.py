"""``bench``: compares sandboxes with plain Docker on the same machine, alternately in one run.

Calls are paced like those of an agent: back-to-back calls would only measure a full machine. The
ratios matter; the milliseconds depend on the machine.
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
from sandlot.cli.terminal.display import print_json, print_table
from sandlot.domain.capacity.limits import MIB, LimitChange
from sandlot.domain.errors import Unavailable, Unsupported
from sandlot.domain.execution import Output

if TYPE_CHECKING:
    from sandlot.client.async_client import AsyncClient
    from sandlot.client.async_session import AsyncSession
    from sandlot.domain.capacity.pool import PoolStats

PACE_SECONDS = 0.05
REFILL_WITHIN_SECONDS = 30.0
WARM_UP_ROUNDS = 2
# The same limits as the server's sandboxes, as far as the docker command can express them.
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
    """Measured milliseconds, by the name of the measurement."""

    values: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in SERIES})

    def p50(self, name: str) -> float:
        return statistics.median(self.values[name])

    def figures(self) -> dict[str, float]:
        figures = {f"{name}_p50_ms": self.p50(name) for name in SERIES}
        for name in ("create", "create_custom", "first_output", "exec"):
            baseline = "docker_create" if name == "create_custom" else f"docker_{name}"
            figures[f"{name}_ratio"] = self.p50(baseline) / self.p50(name)
        return figures


def register(app: typer.Typer) -> None:
    app.command()(bench)


def bench(
    ctx: typer.Context,
    rounds: Annotated[
        int,
        typer.Option(
            "--rounds", metavar="ROUNDS", min=3, max=1000, help="How many measurements of each kind."
        ),
    ] = 30,
    environment: Annotated[
        str, typer.Option("--environment", metavar="NAME", help="The environment to measure.")
    ] = "base",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Compare Sandlot's speed with plain Docker.

    Measures how fast the server creates sandboxes and runs commands, and the same with `docker`.
    """
    if shutil.which("docker") is None:
        raise Unsupported("The docker command is not installed. `sandlot bench` needs it for comparison.")
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
        raise Unavailable(
            f"No worker has a pool for {environment}. Run `sandlot fleet workers` to see the workers."
        )
    samples = Samples()
    console = Console(stderr=True)
    numbers = range(rounds + WARM_UP_ROUNDS)
    for number in track(numbers, "measuring", console=console, transient=True, disable=not progress):
        timings = await one_round(client, environment, image)
        if number >= WARM_UP_ROUNDS:
            for name, value in timings.items():
                samples.values[name].append(value)
    after = (await client.health()).pools.get(environment, before)
    return {**samples.figures(), "pool_hit_rate": _hit_rate(before, after), "rounds": float(rounds)}


def _hit_rate(before: PoolStats, after: PoolStats) -> float:
    hits = after.hits - before.hits
    misses = sum(after.misses.values()) - sum(before.misses.values())
    return hits / max(1, hits + misses)


async def one_round(client: AsyncClient, environment: str, image: str) -> dict[str, float]:
    """Measure Sandlot and Docker once each, so that other load on the machine affects both."""
    timings: dict[str, float] = {}
    session = await _timed(timings, "create", client, environment, lambda: client.create(environment))
    timings["exec"] = await _exec_ms(session)
    await session.delete()
    custom = await _timed(
        timings,
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
        raise AssertionError("echo printed nothing.")

    first = await _timed(timings, "first_output", client, environment, create_and_print)
    await first.delete()
    await asyncio.to_thread(_docker_round, timings, image)
    return timings


async def _timed(
    timings: dict[str, float],
    name: str,
    client: AsyncClient,
    environment: str,
    make: Callable[[], Awaitable[AsyncSession]],
) -> AsyncSession:
    await _wait_for_refill(client, environment)
    began = time.perf_counter()
    session = await make()
    timings[name] = (time.perf_counter() - began) * 1000
    return session


async def _exec_ms(session: AsyncSession) -> float:
    await session.run(["true"])
    await asyncio.sleep(PACE_SECONDS)
    began = time.perf_counter()
    result = await session.run(["echo", "hi"])
    elapsed_ms = (time.perf_counter() - began) * 1000
    assert result.output == "hi\n", result
    return elapsed_ms


async def _wait_for_refill(client: AsyncClient, environment: str) -> None:
    """Wait until the pool is full again, as it is between the calls of a real user."""
    deadline = time.monotonic() + REFILL_WITHIN_SECONDS
    while time.monotonic() < deadline:
        await asyncio.sleep(PACE_SECONDS)
        pool = (await client.health()).pools[environment]
        if pool.ready and not pool.making:
            return


def _docker_round(timings: dict[str, float], image: str) -> None:
    name = f"sandlot-bench-{time.time_ns()}"
    try:
        began = time.perf_counter()
        _docker("create", "--name", name, *DOCKER_OPTIONS, image, "sleep", "600")
        _docker("start", name)
        timings["docker_create"] = (time.perf_counter() - began) * 1000
        time.sleep(PACE_SECONDS)
        began = time.perf_counter()
        _docker("exec", name, "echo", "hi")
        timings["docker_exec"] = (time.perf_counter() - began) * 1000
        _docker("rm", "-f", name)
        time.sleep(PACE_SECONDS)
        began = time.perf_counter()
        _docker("run", "-d", "--name", name, *DOCKER_OPTIONS, image, "sleep", "600")
        _docker("exec", name, "echo", "hi")
        timings["docker_first_output"] = (time.perf_counter() - began) * 1000
    finally:
        _docker("rm", "-f", name, check=False)


def _docker(*arguments: str, check: bool = True) -> None:
    try:
        subprocess.run(["docker", *arguments], check=check, capture_output=True, timeout=120)
    except subprocess.CalledProcessError as error:
        raise Unsupported(
            f"`docker {arguments[0]}` failed here: {error.stderr.decode(errors='replace').strip()[:300]}"
        ) from error
