"""Runs hostile agents next to honest sandboxes on one worker.

Twenty honest sandboxes run commands in turn: first alone, then for a minute during each kind of attack. An
attack starts sandboxes whose agent was replaced by a hostile program, one after another; when one is
quarantined, the next one starts. Honest commands may take at most twice as long, `/health` must answer within
100 ms, and each culprit's session must have a loss report that says why. Exits with 1 if a limit is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.attacks.culprits import ATTACKS, Attack, Outcome, crowd, write_registry
from bench.attacks.probe import Measurements, from_own_process
from bench.rig import Bar, ProcessorTime, print_table, progress, report_bars
from bench.server import Served, serving
from sandlot import AsyncClient

HONEST = 20
SETTLE_S = 3.0
TIMES_IDLE = 2.0
HEALTH_MS = 100.0


@dataclass(frozen=True)
class Rate:
    per_second: float
    slowed_down: int  # culprits at once of a kind that is not quarantined


@dataclass(frozen=True)
class Phase:
    name: str
    seen: Measurements
    stolen: float
    memory_mib: float
    attack: Attack | None = None
    outcome: Outcome | None = None


async def phase(
    served: Served,
    client: AsyncClient,
    honest: list[str],
    seconds: float,
    attack: Attack | None,
    rate: Rate,
) -> Phase:
    name = attack.name if attack else "idle"
    progress(f"{name}: {seconds:g} s")
    if attack is None:
        await asyncio.sleep(SETTLE_S)
        before = ProcessorTime.now()
        seen = await from_own_process(served.url, seconds, honest)
        return Phase(name, seen, ProcessorTime.now().stolen_since(before), served.rss_bytes() / 2**20)
    count = math.ceil(seconds * rate.per_second) if attack.report else rate.slowed_down
    async with crowd(client, attack, count) as culprits:
        await asyncio.sleep(SETTLE_S)
        before = ProcessorTime.now()
        seen, outcome = await asyncio.gather(
            from_own_process(served.url, seconds, honest), culprits.attack(seconds, rate.per_second)
        )
        stolen = ProcessorTime.now().stolen_since(before)
    for report, times in outcome.reports.items():
        progress(f"  {times} times: {report}")
    return Phase(name, seen, stolen, served.rss_bytes() / 2**20, attack, outcome)


async def measure(seconds: float, rate: Rate, names: list[str]) -> list[Phase]:
    with tempfile.TemporaryDirectory(prefix="sandlot-bench-") as folder:
        registry = Path(folder) / "registry"
        write_registry(registry)
        settings = {
            "registry_dir": registry,
            "pool_size": 4,
            "min_pool_size": 0,
            "max_pool_size": 4,
            "max_sessions": 2000,
        }
        async with (
            serving(module="bench.attacks.server", **settings) as served,
            served.client() as client,
        ):
            honest = [(await client.create()).id for _ in range(HONEST)]
            plan = [None, *(ATTACKS[name] for name in names), None]
            return [await phase(served, client, honest, seconds, attack, rate) for attack in plan]


def idle_p50_ms(phases: list[Phase]) -> float:
    """Returns the faster idle phase: other work may have slowed one of them down."""
    return min(each.seen.exec_p50_ms for each in phases if each.attack is None)


def show(phases: list[Phase]) -> None:
    idle = idle_p50_ms(phases)
    rows = [
        [
            *("", "culprits", "quarantined", "slowest s", "exec p50 ms", "times idle", "p99", "failed"),
            *("health p50", "p99", "max ms", "server MiB", "stolen"),
        ]
    ]
    for each in phases:
        outcome, seen = each.outcome, each.seen
        cut_off = outcome is not None and each.attack is not None and each.attack.report is not None
        rows.append(
            [
                each.name,
                str(outcome.let_loose) if outcome else "",
                (str(outcome.quarantined) if cut_off else "slowed down") if outcome else "",
                f"{outcome.slowest_s:.1f}" if outcome and cut_off else "",
                f"{seen.exec_p50_ms:.2f}",
                f"{seen.exec_p50_ms / idle:.2f}",
                f"{seen.exec_p99_ms:.1f}",
                str(seen.failed),
                f"{seen.health_p50_ms:.1f}",
                f"{seen.health_p99_ms:.1f}",
                f"{seen.health_max_ms:.1f}",
                f"{each.memory_mib:.0f}",
                f"{each.stolen:.1%}",
            ]
        )
    print_table(rows)


def bars(phases: list[Phase]) -> list[Bar]:
    idle = idle_p50_ms(phases)
    attacks = [each for each in phases if each.outcome is not None]
    worst = max(attacks, key=lambda each: each.seen.exec_p50_ms)
    slowest = max(attacks, key=lambda each: each.seen.health_p99_ms)
    highest = max(each.seen.health_max_ms for each in attacks)
    cut_off = [
        (each, each.outcome) for each in attacks if each.outcome and each.attack and each.attack.report
    ]
    let_loose = sum(outcome.let_loose for _, outcome in cut_off)
    quarantined = sum(outcome.quarantined for _, outcome in cut_off)
    failed = sum(each.seen.failed for each in attacks)
    return [
        Bar(
            f"honest exec p50, worst ({worst.name}), times idle",
            f"{worst.seen.exec_p50_ms / idle:.2f}",
            f"{TIMES_IDLE:g}",
            worst.seen.exec_p50_ms <= TIMES_IDLE * idle,
        ),
        Bar("honest commands that failed", str(failed), "0", failed == 0),
        Bar(
            f"/health p99, worst ({slowest.name}), and its maximum, ms",
            f"{slowest.seen.health_p99_ms:.1f}, {highest:.1f}",
            f"p99 {HEALTH_MS:g}",
            slowest.seen.health_p99_ms <= HEALTH_MS,
        ),
        Bar(
            "culprits with a loss report that says why",
            f"{quarantined} of {let_loose}",
            "all",
            quarantined == let_loose,
        ),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60, help="seconds per attack")
    parser.add_argument("--per-second", type=float, default=2, help="hostile sandboxes to start per second")
    parser.add_argument(
        "--slowed", type=int, default=4, help="concurrent hostile sandboxes of kinds that are not quarantined"
    )
    parser.add_argument("--attacks", nargs="+", default=list(ATTACKS), choices=list(ATTACKS))
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    phases = asyncio.run(
        measure(arguments.seconds, Rate(arguments.per_second, arguments.slowed), arguments.attacks)
    )
    if not arguments.json:
        show(phases)
        print()
    details = [asdict(each) for each in phases]
    sys.exit(report_bars(bars(phases), as_json=arguments.json, phases=details))


if __name__ == "__main__":
    main()
