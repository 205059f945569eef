"""Chaos: a fleet of real processes on a real Redis, clients that write down all they ask and hear, a random fault
every 10 to 30 seconds; then the checker. Exits with 1 if a rule was broken.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from pathlib import Path

from bench.chaos.checker import check
from bench.chaos.clients import SEEDED_BUGS
from bench.chaos.history import History, read
from bench.chaos.run import Plan, run
from bench.chaos.summary import print_tables, summary
from bench.rig import progress


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=15)
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--coordinators", type=int, default=2)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--pause", type=float, nargs=2, default=(10, 30), metavar=("LEAST", "MOST"))
    parser.add_argument("--no-faults", action="store_true")
    parser.add_argument("--seed-bug", choices=SEEDED_BUGS, help="the clients lie: the checker must find it")
    parser.add_argument("--history", type=Path, help="where to write it")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    plan = Plan(
        minutes=arguments.minutes,
        workers=arguments.workers,
        coordinators=arguments.coordinators,
        clients=arguments.clients,
        seed=arguments.seed,
        pause_s=tuple(arguments.pause),
        faults=not arguments.no_faults,
        bug=arguments.seed_bug,
    )
    history: Path = arguments.history or Path(tempfile.mkdtemp(prefix="sandlot-chaos-")) / "history.jsonl"
    progress(f"history: {history}; {plan}")
    asyncio.run(run(plan, history))
    violations = check(read(history))
    figures = summary(History.of(read(history)), violations)
    if arguments.json:
        print(json.dumps({**figures, "broken": [list(violation) for violation in violations]}))
    else:
        print_tables(figures, violations)
    sys.exit(1 if violations else 0)


if __name__ == "__main__":
    main()
