"""What counting and idle traces cost a command, beside the fastest command over HTTP.

python -m bench.counting
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Callable

from bench.rig import Bar, ProcessorTime, report_bars
from bench.server import serving
from sandlot.api.v1.metrics import RequestMetrics
from sandlot.domain.metrics import table
from sandlot.domain.metrics.figures import Figures
from sandlot.wire.tracing import traces

MOST_PERCENT = 2.0
BATCHES = 20
IN_A_BATCH = 100


def counting() -> Callable[[], None]:
    """What is counted for one command."""
    figures = Figures()
    metrics = RequestMetrics(figures)

    def count() -> None:
        figures.count(table.EXECS, "python", "ok")
        figures.observe(table.EXEC_SECONDS, 0.0013, "python")
        metrics.observe("POST", "/v1/sessions/{session_id}/exec", 200, 0.0013)

    return count


def trace() -> None:
    """What one command asks of traces that are off."""
    for kind in ("CLIENT", "SERVER", "INTERNAL"):
        with traces.span("x", kind, sandlot_exec_id="e"):
            traces.headers()
    traces.set_received(None)


def fastest(work: Callable[[], object]) -> float:
    """Seconds. The least of many, because other processes use the machine too."""
    least = float("inf")
    for _ in range(BATCHES):
        began = time.perf_counter()
        for _ in range(IN_A_BATCH):
            work()
        least = min(least, (time.perf_counter() - began) / IN_A_BATCH)
    return least


async def fastest_command(rounds: int) -> float:
    least = float("inf")
    async with serving() as served, served.client() as client:
        session = await client.create()
        for _ in range(rounds):
            began = time.perf_counter()
            await session.run("true")
            least = min(least, time.perf_counter() - began)
    return least


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=500)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    before = ProcessorTime.now()
    command = asyncio.run(fastest_command(arguments.rounds))
    costs = {"counting": fastest(counting()), "idle traces": fastest(trace)}
    stolen = 100 * ProcessorTime.now().stolen_since(before)
    bars = [
        Bar(what, f"{100 * cost / command:.2f} %", f"< {MOST_PERCENT} %", 100 * cost / command < MOST_PERCENT)
        for what, cost in costs.items()
    ]
    status = report_bars(bars, as_json=arguments.json, command_ms=1000 * command, stolen_percent=stolen)
    if not arguments.json:
        print(f"\nfastest command: {1000 * command:.2f} ms\nstolen by the host: {stolen:.1f} %")
    return status


if __name__ == "__main__":
    sys.exit(main())
