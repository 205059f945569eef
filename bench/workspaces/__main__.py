"""Snapshots, restores, forks and hibernation, beside other ways to keep the same files.

Everything runs on one btrfs storage in a loop file, and beside a server that keeps files in Docker volumes.
"""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

from bench.rig import Bar, ProcessorTime, p50, print_table, report_bars
from bench.workspaces.measuring import AT_ONCE, PARTS, Figures, measure
from bench.workspaces.pictures import draw

MIB = 1024 * 1024
# How much longer the last snapshots of a long line may take than the first ones.
FLAT = 2.0
# What a snapshot may cost beside its changes: the file system's own records.
SNAPSHOT_BYTES = 64 * 1024


def bars(figures: Figures) -> list[Bar]:
    summary = figures.summary()
    limits = {
        "snapshot_ms": 50.0,
        "restore_ms": 150.0,
        "ten_forks_s": 2.0,
        "create_ratio": 1.25,
        "resume_ratio": 3.0,
    }
    found = [
        Bar(name, f"{summary[name]:.2f}", f"<= {limit:g}", summary[name] <= limit)
        for name, limit in limits.items()
        if name in summary
    ]
    if figures.line_create:
        found += line_bars(figures)
    if figures.hibernated:
        none = figures.containers_while_hibernated == 0
        seen = str(figures.containers_while_hibernated)
        found.append(Bar("containers of hibernated threads", seen, "0", none))
    return found


def line_bars(figures: Figures) -> list[Bar]:
    found = []
    for name, line in (("create", figures.line_create), ("delete", figures.line_delete)):
        slope = line[-1] / line[0]
        seen = f"{slope:.2f} ({line[0]:.1f} ms, then {line[-1]:.1f} ms)"
        found.append(Bar(f"{name}: last / first snapshots", seen, f"<= {FLAT:g}", slope <= FLAT))
    count = len(figures.line_create) * 50
    allowed = figures.line_changed_bytes + count * SNAPSHOT_BYTES
    grown = figures.line_growth_bytes
    held = grown <= allowed
    found.append(
        Bar("growth by all snapshots", f"{grown / MIB:.1f} MiB", f"<= {allowed / MIB:.1f} MiB", held)
    )
    return found


def rows(figures: Figures) -> list[list[str]]:
    found = [["", "ms, p50"]]
    found += [[name, f"{took:,.1f}"] for name, took in ways(figures).items()]
    if figures.hibernated:
        found.append([f"{AT_ONCE} resumed at once", f"{1000 * figures.at_once_s:,.0f}"])
    return found


def ways(figures: Figures) -> dict[str, float]:
    samples = {
        "snapshot": figures.snapshot,
        "restore": figures.restore,
        **{name: [took] for name, took in figures.peers.items()},
        "create": figures.create,
        "create on btrfs": figures.btrfs_create,
        "create with files": figures.swapped_create,
        "create with files, snapshot's first use": figures.copied_create,
        "create and first output": figures.first_output,
        "resume and first output": figures.resumed_output,
    }
    return {name: p50(some) for name, some in samples.items() if some}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.workspaces", description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--plot", type=Path, help="write a picture (PNG) to this file")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, help="measure these parts alone")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--megabytes", type=int, default=1000, help="size of all files")
    parser.add_argument("--snapshots", type=int, default=1000, help="snapshots of one workspace")
    parser.add_argument("--threads", type=int, default=200, help="threads that hibernate")
    arguments = parser.parse_args()
    before = ProcessorTime.now()
    figures = asyncio.run(
        measure(
            parts=arguments.only,
            rounds=arguments.rounds,
            files=arguments.files,
            megabytes=arguments.megabytes,
            snapshots=arguments.snapshots,
            threads=arguments.threads,
        )
    )
    stolen = ProcessorTime.now().stolen_since(before)
    if arguments.plot:
        draw(figures, arguments.plot)
    held = bars(figures)
    if arguments.json:
        more = {"peers_ms": figures.peers, "stolen": stolen}
        raise SystemExit(report_bars(held, as_json=True, **figures.summary(), **more))
    print_table(rows(figures))
    print()
    status = report_bars(held)
    print(f"\nstolen by the host: {100 * stolen:.1f} %")
    raise SystemExit(status)


if __name__ == "__main__":
    main()
