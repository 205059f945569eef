"""What the history costs a command, how fast it answers, and that it stays small.

Execs and creates are measured in turn on two servers: one with keys, tenants and history, one without. Then
commands run in turn in a session that is recorded and in one that is not. Then a server with a small history
runs many commands, and a history of many events is asked.
"""

from __future__ import annotations

import argparse
import asyncio
import sys

from bench.history import overhead, queries
from bench.rig import Bar, print_table, report_bars

MIB = 1024 * 1024
MAX_RATIO = 1.15
MAX_QUERY_MS = 100.0
MAX_BYTES = 2 * MIB
# The write-ahead log, which SQLite empties at 4 MiB, and one batch.
SLACK_BYTES = 6 * MIB


async def run(arguments: argparse.Namespace) -> int:
    bars: list[Bar] = []
    figures: dict[str, float] = {}
    if "overhead" in arguments.parts:
        found = await overhead.ratios(arguments.rounds)
        bars += [
            Bar(f"{what} with, by without", f"{found[f'{what}_ratio']:.3f}", f"{MAX_RATIO}", held)
            for what in ("exec", "create")
            for held in (found[f"{what}_ratio"] <= MAX_RATIO,)
        ]
        figures |= found
    if "recordings" in arguments.parts:
        found = await overhead.recording_ratios(arguments.rounds)
        bars += [
            Bar(f"a recorded command, {name.removesuffix('_ratio')}", f"{ratio:.3f}", f"{MAX_RATIO}", held)
            for name, ratio in found.items()
            if name.endswith("_ratio")
            for held in (ratio <= MAX_RATIO,)
        ]
        figures |= found
    if "size" in arguments.parts:
        found = await overhead.size_after(arguments.execs, MAX_BYTES)
        largest, most = found["largest_bytes"], MAX_BYTES + SLACK_BYTES
        bars.append(Bar(f"bytes after {arguments.execs} execs", f"{largest}", f"{most}", largest <= most))
        figures |= found
    if "queries" in arguments.parts:
        found = await queries.measure(arguments.events)
        slowest = max(value for name, value in found.items() if name.endswith("_ms"))
        what = f"slowest query of {arguments.events} events, ms"
        bars.append(Bar(what, f"{slowest:.1f}", f"{MAX_QUERY_MS:.0f}", slowest < MAX_QUERY_MS))
        figures |= found
    if not arguments.json:
        print_table([["", "measured"], *([name, f"{value:.2f}"] for name, value in figures.items())])
        print()
    return report_bars(bars, as_json=arguments.json, figures=figures)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--execs", type=int, default=10_000)
    parser.add_argument("--events", type=int, default=1_000_000)
    parts = ["overhead", "recordings", "size", "queries"]
    parser.add_argument("--parts", nargs="+", choices=parts, default=parts)
    sys.exit(asyncio.run(run(parser.parse_args())))
