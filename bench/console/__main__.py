"""The console in a real Chromium, against a real server.

Keys are pressed in a terminal while 10 MB of output arrive. Then pages are opened on a server with
many sessions and a long history.
"""

from __future__ import annotations

import argparse
import asyncio
import secrets
import sys
from collections.abc import Sequence

from bench.console import flood, pages
from bench.rig import Bar, ProcessorTime, print_table, report_bars
from bench.server import serving

KEY_MS = 100.0
SERVER_MS = 200.0
PAINT_MS = 1000.0


def spread(samples: Sequence[float]) -> dict[str, float]:
    ordered = sorted(samples)
    places = {"p50": 0.5, "p95": 0.95, "max": 1.0}
    return {
        name: round(ordered[min(len(ordered) - 1, int(len(ordered) * share))], 1)
        for name, share in places.items()
    }


async def measure(arguments: argparse.Namespace) -> dict[str, dict[str, dict[str, float]]]:
    """``key_ms``, ``server_ms`` and ``paint_ms``: names → p50, p95, max."""
    found: dict[str, dict[str, list[float]]] = {}
    api_key = secrets.token_hex(16)
    if "flood" in arguments.parts:
        async with serving(api_key=api_key, pool_size=1) as served:
            keys = await flood.measure(served, arguments.keys)
        found["key_ms"] = keys.milliseconds
        print(f"the terminal took {keys.mb_per_s:.1f} MB/s", file=sys.stderr)
    if "pages" in arguments.parts:
        async with pages.filled(arguments.sessions, arguments.events, api_key) as served:
            found["server_ms"], found["paint_ms"] = await pages.measure(served, arguments.rounds)
    return {kind: {name: spread(samples) for name, samples in named.items()} for kind, named in found.items()}


def bars(figures: dict[str, dict[str, dict[str, float]]], leniency: float = 1.0) -> list[Bar]:
    """The 95th percentile counts. ``leniency`` multiplies the bars."""
    limits = {"key_ms": KEY_MS, "server_ms": SERVER_MS, "paint_ms": PAINT_MS}
    return [
        Bar(f"{kind} {name}, p95", f"{each['p95']:.0f}", f"{limits[kind] * leniency:.0f}", held)
        for kind, named in figures.items()
        for name, each in named.items()
        for held in (each["p95"] <= limits[kind] * leniency,)
    ]


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(prog="python -m bench.console", description=__doc__)
    found.add_argument("--json", action="store_true")
    found.add_argument("--keys", type=int, default=60)
    found.add_argument("--rounds", type=int, default=30, help="times that each question is asked")
    found.add_argument("--sessions", type=int, default=1_000)
    found.add_argument("--events", type=int, default=100_000)
    parts = ["flood", "pages"]
    found.add_argument("--parts", nargs="+", choices=parts, default=parts)
    return found


def main() -> None:
    arguments = parser().parse_args()
    before = ProcessorTime.now()
    figures = asyncio.run(measure(arguments))
    stolen = ProcessorTime.now().stolen_since(before)
    if not arguments.json:
        rows = [
            [f"{kind} {name}", *(f"{value:.1f}" for value in each.values())]
            for kind, named in figures.items()
            for name, each in named.items()
        ]
        print_table([["", "p50", "p95", "max"], *rows])
        print(f"\n{stolen:.1%} of the processor time went to others\n")
    raise SystemExit(report_bars(bars(figures), as_json=arguments.json, **figures, stolen=stolen))


if __name__ == "__main__":
    main()
