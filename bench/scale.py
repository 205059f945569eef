"""Measures what a create and a heartbeat cost a fleet's Redis as the numbers of workers and sessions grow.

It starts its own Redis. The workers are simulated but use the real directory code. The cost is Redis's own
time per call, because the client's time is constant and would hide growth. Fleets of all sizes are measured
alternately in the same Redis, so that noise affects all of them alike. CPU is the whole Redis process.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
import uuid
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from redis.asyncio import Redis

from bench.rig import p50, progress
from sandlot.domain.callers.limits import Allowance, CallerLimits, tenant_holder
from sandlot.domain.ids import new_sandbox_id, new_session_id
from sandlot.domain.session import Session
from sandlot.fleet.directory.contract import (
    Place,
    PlacementRequest,
    Room,
    SessionEntry,
    Timings,
    WorkerCard,
    WorkerReport,
)
from sandlot.fleet.directory.lease import Lease
from sandlot.fleet.directory.redis_directory import RedisDirectory
from sandlot.testing.directory_suite.redis_server import redis_server

WORKERS = (10, 100, 1000)
SESSIONS = (1_000, 100_000, 1_000_000)
ENVIRONMENTS = ("base", "data", "web", "slim")
TENANTS = 100
AT_ONCE = 8  # concurrent calls
# So long that no lease expires while other fleets are measured. A real fleet has DEFAULT_TIMINGS.
TIMINGS = Timings(lease_s=24 * 3600.0, lost_after_s=24 * 3600.0)
DEFAULT_TIMINGS = Timings()
REPORTS_IN_A_LEASE = 3
SHARE_OF_A_CORE = 0.5
# Where Redis keeps its data: a description and the options. "disk" has the options of
# deploy/redis/redis.conf.
STORAGE = {
    "disk": ("on disk, as recommended", ("--appendonly", "yes", "--appendfsync", "everysec")),
    "memory": ("in memory alone", ()),
}


@dataclass
class Fleet:
    """A simulated fleet.

    ``place_us`` and ``report_us`` have Redis's average time per call and round.
    """

    workers: int
    sessions: int
    directory: RedisDirectory
    leases: list[Lease] = field(default_factory=list)
    bytes_per_session: float = 0.0
    place_us: list[float] = field(default_factory=list)
    report_us: list[float] = field(default_factory=list)
    latency_us: list[float] = field(default_factory=list)
    cpu_of_reports_us: list[float] = field(default_factory=list)
    cpu_of_creates_us: list[float] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"{self.workers:,} workers, {self.sessions:,} sessions"


class Meter:
    """Reads Redis's own statistics."""

    def __init__(self, url: str) -> None:
        self._redis = Redis.from_url(url)

    async def memory(self) -> int:
        return int((await self._redis.info("memory"))["used_memory"])

    async def cpu_us(self) -> float:
        info = await self._redis.info("cpu")
        return float(info["used_cpu_user"] + info["used_cpu_sys"]) * 1e6

    async def scripts(self) -> tuple[int, int]:
        """Returns how many scripts ran so far, and the microseconds that they took."""
        stats = (await self._redis.info("commandstats")).get("cmdstat_evalsha", {"calls": 0, "usec": 0})
        return int(stats["calls"]), int(stats["usec"])

    async def script_us(self, work: Awaitable[object]) -> float:
        """Runs ``work`` and returns the average time of its calls in Redis."""
        calls, usec = await self.scripts()
        await work
        calls_after, usec_after = await self.scripts()
        return (usec_after - usec) / max(1, calls_after - calls)

    async def close(self) -> None:
        await self._redis.aclose()


async def run_concurrently(calls: Iterable[Callable[[], Awaitable[object]]]) -> None:
    """Runs the calls, a few at a time."""
    remaining = iter(calls)

    async def run_remaining() -> None:
        for call in remaining:
            await call()

    await asyncio.gather(*(run_remaining() for _ in range(AT_ONCE)))


def a_session(number: int) -> Session:
    """Makes a typical session: with a thread and a little metadata."""
    now = time.time()
    return Session(
        new_session_id(),
        ENVIRONMENTS[number % len(ENVIRONMENTS)],
        now,
        now,
        tenant=f"tenant-{number % TENANTS:03}",
        thread=str(uuid.uuid4()),
        sandbox_id=new_sandbox_id(),
        metadata={"user": f"user-{number}"},
    )


def report_of(sessions: int) -> WorkerReport:
    return WorkerReport(room={name: Room(5, 10_000) for name in ENVIRONMENTS}, sessions=sessions)


async def build(fleet: Fleet, meter: Meter) -> None:
    began = time.monotonic()
    for number in range(fleet.workers):
        card = WorkerCard(f"worker-{number:04}", f"http://10.0.{number // 250}.{number % 250}:8000", "1.0.0")
        fleet.leases.append(await fleet.directory.join(card, f"process-{number}"))
    await report_all(fleet)
    empty = await meter.memory()

    def record(number: int, count: int) -> Callable[[], Awaitable[object]]:
        async def call() -> None:
            entries = [SessionEntry(a_session(number + i)) for i in range(count)]
            await fleet.directory.record(fleet.leases[number // 50 % fleet.workers], entries)

        return call

    await run_concurrently(
        record(begin, min(50, fleet.sessions - begin)) for begin in range(0, fleet.sessions, 50)
    )
    full = await meter.memory()
    fleet.bytes_per_session = (full - empty) / fleet.sessions
    progress(f"{fleet.name}: built in {time.monotonic() - began:.0f} s")


async def report_all(fleet: Fleet, count: int | None = None) -> None:
    report = report_of(fleet.sessions // fleet.workers)
    chosen = [fleet.leases[number % fleet.workers] for number in range(count or fleet.workers)]
    await run_concurrently(lambda lease=lease: fleet.directory.report(lease, report) for lease in chosen)  # type: ignore[misc]


async def measure(fleet: Fleet, meter: Meter, calls: int) -> None:
    """Measures one round: placements, then reports, then whole session lives for their CPU."""
    places: list[Place] = []

    async def place() -> None:
        began = time.perf_counter()
        found = await fleet.directory.place(
            PlacementRequest("tenant-007", "base", thread=str(uuid.uuid4()), allowances=limited("tenant-007"))
        )
        fleet.latency_us.append((time.perf_counter() - began) * 1e6)
        assert isinstance(found, Place)
        assert not found.known
        places.append(found)

    async def place_all() -> None:
        for _ in range(calls):
            await place()

    fleet.place_us.append(await meter.script_us(place_all()))
    for found in places:
        assert found.reservation is not None
        await fleet.directory.give_back(found.reservation)
    cpu = await meter.cpu_us()
    fleet.report_us.append(await meter.script_us(report_all(fleet, calls)))
    fleet.cpu_of_reports_us.append((await meter.cpu_us() - cpu) / calls)
    cpu = await meter.cpu_us()
    await run_concurrently([lambda: create_and_end(fleet)] * calls)
    fleet.cpu_of_creates_us.append((await meter.cpu_us() - cpu) / calls)


def limited(tenant: str) -> tuple[Allowance, ...]:
    """All limits that there are, so that each is checked, and so high that none is reached."""
    limits = CallerLimits(10**6, 10**6, 10**9, creates_per_s=10**5)
    return (Allowance(tenant_holder(tenant), limits),)


async def create_and_end(fleet: Fleet) -> None:
    """Makes all calls that a session's whole life costs the directory."""
    session = a_session(7)
    found = await fleet.directory.place(
        PlacementRequest(session.tenant, "base", session.thread, allowances=limited(session.tenant))
    )
    assert isinstance(found, Place)
    lease = fleet.leases[int(found.worker.id.rpartition("-")[2])]
    await fleet.directory.record(lease, [SessionEntry(session, found.reservation)])
    await fleet.directory.forget(lease, [session.id])


def figures(fleets: list[Fleet]) -> dict[str, object]:
    rows = [
        {
            "workers": fleet.workers,
            "sessions": fleet.sessions,
            "place_us": median(fleet.place_us),
            "place_latency_us": p50(fleet.latency_us),
            "report_us": median(fleet.report_us),
            "redis_cpu_per_report_us": median(fleet.cpu_of_reports_us),
            "redis_cpu_per_session_life_us": median(fleet.cpu_of_creates_us),
            "bytes_per_session": fleet.bytes_per_session,
        }
        for fleet in fleets
    ]
    at = {(row["workers"], row["sessions"]): row for row in rows}
    counts = sorted({fleet.sessions for fleet in fleets})
    few, usual, most = counts[0], counts[len(counts) // 2], counts[-1]
    large = at[1000, most]
    report_s = large["redis_cpu_per_report_us"] / 1e6
    life_s = large["redis_cpu_per_session_life_us"] / 1e6
    per_worker = REPORTS_IN_A_LEASE / DEFAULT_TIMINGS.lease_s

    def ratio(name: str, one: tuple[int, int], other: tuple[int, int]) -> float:
        return at[one][name] / at[other][name]

    return {
        "create_cost_1000_vs_10": ratio("place_us", (1000, usual), (10, usual)),
        "create_cost_1000_vs_10_worst": max(
            ratio("place_us", (1000, count), (10, count)) for count in counts
        ),
        "create_latency_1000_vs_10": ratio("place_latency_us", (1000, usual), (10, usual)),
        "report_cost_1000_vs_10": ratio("report_us", (1000, usual), (10, usual)),
        "create_cost_most_vs_fewest_sessions": ratio("place_us", (1000, most), (1000, few)),
        "create_cost_largest_vs_smallest_fleet": ratio("place_us", (1000, most), (10, few)),
        "commands_per_second_of_1000_workers": 1000 * per_worker,
        "percent_of_a_core_for_1000_workers": 100 * 1000 * per_worker * report_s,
        "reports_per_second_at_half_a_core": SHARE_OF_A_CORE / report_s,
        "workers_at_half_a_core": SHARE_OF_A_CORE / report_s / per_worker,
        "session_lives_per_second_at_half_a_core": SHARE_OF_A_CORE / life_s,
        "gib_for_a_million_sessions": large["bytes_per_session"] * 1e6 / 2**30,
        "fleets": rows,
    }


def print_table(result: dict[str, object]) -> None:
    rows = result["fleets"]
    assert isinstance(rows, list)
    print(
        f"{'workers':>8} {'sessions':>10} {'place':>9} {'report':>9} {'CPU/report':>11} {'CPU/session':>12} {'bytes':>7}"
    )
    for row in rows:
        print(
            f"{row['workers']:8,} {row['sessions']:10,} {row['place_us']:6.0f} µs {row['report_us']:6.0f} µs "
            f"{row['redis_cpu_per_report_us']:8.0f} µs {row['redis_cpu_per_session_life_us']:9.0f} µs {row['bytes_per_session']:7.0f}"
        )
    for name, value in result.items():
        if isinstance(value, float):
            print(f"{name:40} {value:12,.2f}")


def plot(result: dict[str, object], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = result["fleets"]
    assert isinstance(rows, list)
    counts = sorted({row["sessions"] for row in rows})
    figure, axes = pyplot.subplots(1, 3, figsize=(13, 3.6))
    for panel, name, text in (
        (axes[0], "place_us", "place (a create): Redis's time, µs"),
        (axes[1], "report_us", "report (a heartbeat): Redis's time, µs"),
    ):
        for count in counts:
            chosen = [row for row in rows if row["sessions"] == count]
            panel.plot(
                [row["workers"] for row in chosen],
                [row[name] for row in chosen],
                marker="o",
                label=f"{count:,} sessions",
            )
        panel.set(xscale="log", xlabel="workers", ylabel=text, ylim=(0, 1.3 * max(row[name] for row in rows)))
    chosen = [row for row in rows if row["workers"] == max(WORKERS)]
    axes[2].plot(
        [row["sessions"] for row in chosen],
        [row["bytes_per_session"] for row in chosen],
        marker="o",
        label=f"{max(WORKERS):,} workers",
    )
    axes[2].set(
        xscale="log",
        xlabel="sessions",
        ylabel="bytes per session in Redis",
        ylim=(0, 1.3 * max(row["bytes_per_session"] for row in chosen)),
    )
    for panel in axes:
        panel.grid(alpha=0.3)
        panel.legend(loc="lower right")
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)


async def run(quick: bool, *options: str) -> dict[str, object]:
    """Measures every number of workers with every number of sessions. ``options`` go to Redis."""
    counts = (1_000, 20_000) if quick else SESSIONS
    sizes = [(workers, sessions) for sessions in counts for workers in WORKERS]
    rounds, calls = (7, 100) if quick else (21, 200)
    with redis_server(*options) as server:
        meter = Meter(server.url)
        fleets = [
            Fleet(
                workers,
                sessions,
                RedisDirectory.open(server.url, cell=f"f{number}", timings=TIMINGS, deadline_s=30),
            )
            for number, (workers, sessions) in enumerate(sizes)
        ]
        for fleet in fleets:
            await build(fleet, meter)
        # Mark the directories as settled. They would settle after one lease, which is a day here.
        plain = Redis.from_url(server.url)
        for number in range(len(fleets)):
            await plain.hset(f"sandlot:{{f{number}}}:meta", "settles", 0)
        await plain.aclose()
        for number in range(rounds + 1):
            for fleet in fleets:
                await measure(fleet, meter, calls)
                if number == 0:  # the first round only fills the caches
                    for samples in (fleet.place_us, fleet.report_us, fleet.latency_us):
                        samples.clear()
                    fleet.cpu_of_reports_us.clear()
                    fleet.cpu_of_creates_us.clear()
        result = figures(fleets)
        result["redis_used_memory_gib"] = await meter.memory() / 2**30
        for fleet in fleets:
            await fleet.directory.close()
        await meter.close()
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quick", action="store_true", help="measure small fleets only; takes half a minute")
    parser.add_argument(
        "--kept", choices=[*STORAGE, "both"], default="both", help="where Redis keeps its data"
    )
    parser.add_argument("--plot", type=Path, metavar="PATH", help="write a chart to this PNG file")
    arguments = parser.parse_args()
    results = {}
    for name in STORAGE if arguments.kept == "both" else [arguments.kept]:
        progress(f"a Redis whose data is kept {STORAGE[name][0]}")
        results[name] = asyncio.run(run(arguments.quick, *STORAGE[name][1]))
    if arguments.plot:
        plot(results[next(iter(results))], arguments.plot)
    if arguments.json:
        print(json.dumps(results))
        return
    for name, result in results.items():
        print(f"# kept {STORAGE[name][0]}")
        print_table(result)


if __name__ == "__main__":
    main()
