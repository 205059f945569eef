"""The network of sandboxes: bytes per second, added latency, and what other sandboxes notice.

Everything is measured in one run beside a direct connection. The host outside is a web server on loopback. Sandboxes
have their default limits (half a core).
"""

from __future__ import annotations

import argparse
import asyncio
import json
from pathlib import Path

from bench.net.measuring import measure, summary
from bench.net.neighbours import Neighbours
from bench.net.pictures import draw
from bench.net.tiers import TierFigures, rows
from bench.rig import Bar, ProcessorTime, p50, print_table, report_bars

MB_PER_S = {"runc": 100.0, "runsc": 40.0}
ADDED_MS = {"runc": 5.0, "runsc": 15.0}
NEIGHBOUR_RATIO = 3.0
MEMORY_GROWTH = 1.1


def bars(figures: dict[str, TierFigures], beside: Neighbours) -> list[Bar]:
    found = []
    for tier, each in figures.items():
        fastest, slowest = MB_PER_S[tier], ADDED_MS[tier]
        found += [
            Bar(f"{tier}: MB/s", f"{each.mb_per_s:.0f}", f">= {fastest:.0f}", each.mb_per_s >= fastest),
            Bar(
                f"{tier}: added ms, p50",
                f"{each.added_p50_ms:.1f}",
                f"<= {slowest:.0f}",
                each.added_p50_ms <= slowest,
            ),
        ]
    echo = f"{beside.ratio:.2f} ({p50(beside.beside_ms):.1f} ms beside {p50(beside.idle_ms):.1f} ms)"
    memory = f"{beside.memory_growth:.2f} (largest {max(beside.rss_mib):.0f} MiB)"
    return [
        *found,
        Bar("echo beside downloads", echo, f"<= {NEIGHBOUR_RATIO:.0f}", beside.ratio <= NEIGHBOUR_RATIO),
        Bar(
            "server memory, end / start",
            memory,
            f"<= {MEMORY_GROWTH}",
            beside.memory_growth <= MEMORY_GROWTH,
        ),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.net", description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--plot", type=Path, help="write a picture (PNG) to this file")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--megabytes", type=int, default=200, help="size of a download")
    parser.add_argument("--neighbours", type=int, default=50, help="sandboxes that download at once")
    parser.add_argument("--echoes", type=int, default=100)
    arguments = parser.parse_args()
    before = ProcessorTime.now()
    figures, beside = asyncio.run(
        measure(
            rounds=arguments.rounds,
            megabytes=arguments.megabytes,
            neighbours=arguments.neighbours,
            echoes=arguments.echoes,
        )
    )
    stolen = ProcessorTime.now().stolen_since(before)
    if arguments.plot:
        draw(figures, beside, arguments.plot)
    held = bars(figures, beside)
    if arguments.json:
        document = summary(figures, beside) | {"stolen": stolen}
        print(json.dumps(document))
        raise SystemExit(0 if all(bar.held for bar in held) else 1)
    print_table(rows(figures))
    rate = beside.received_bytes / beside.seconds / 1e6
    print(f"\n{arguments.neighbours} sandboxes downloaded {rate:.0f} MB/s together")
    print(f"{stolen:.1%} of the processor time went to others\n")
    raise SystemExit(report_bars(held))


if __name__ == "__main__":
    main()
