"""Runs commands that hide from their timeout, in every way that tests/attacks knows, on both tiers.

Several sandboxes run at a time. Three seconds after the result, no process of the command may be left. The
check lists all processes inside the sandbox, and on runc also the container's cgroup from outside. A round
whose program had not started before its timeout is repeated. Exits with 1 on any violation.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import sys
import time
from collections import defaultdict
from dataclasses import asdict, dataclass, field
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from tests.attacks.inside.evasions import BEGUN, WAYS
from tests.attacks.test_evasions import LIST, PROGRAM

from bench.rig import Bar, ProcessorTime, docker, open_provider, print_table, progress, report_bars, spec_for
from sandlot.domain.environment import Tier
from sandlot.domain.execution import ExecRequest, Verdict
from sandlot.providers.base import Sandbox

GONE_S = 3.0
TIMEOUT_S = 1.0
LOOK_EVERY_S = 0.1
# Attempts of one round. If all fail, the machine is too slow, which says nothing about the agent.
ATTEMPTS = 10


@dataclass
class Tally:
    rounds: int = 0
    not_begun: int = 0
    late_s: list[float] = field(default_factory=list)  # seconds from the timeout to the result
    gone_s: list[float] = field(default_factory=list)  # seconds from the result until nothing runs
    violations: list[str] = field(default_factory=list)


class Target:
    """A sandbox under test, inspected from inside and outside."""

    def __init__(self, sandbox: Sandbox, tier: Tier) -> None:
        self._sandbox = sandbox
        self._cgroup = _cgroup_of(sandbox) if tier is Tier.RUNC else None

    async def run_evasion(self, evasion: str, tally: Tally) -> bool:
        """Runs one round. Returns False if the program had no time to begin."""
        began = time.monotonic()
        request = ExecRequest(argv=("python3", "evasions.py", evasion), timeout_s=TIMEOUT_S)
        result = await asyncio.wait_for(self._sandbox.run(request), 120)
        ended = time.monotonic()
        if result.verdict is not Verdict.TIMEOUT:
            tally.violations.append(f"{evasion}: {result}")
        left, checked_at = await self._wait_gone(ended)
        if BEGUN not in result.stdout:
            tally.not_begun += 1
            return False
        tally.rounds += 1
        tally.late_s.append(ended - began - TIMEOUT_S)
        if left:
            tally.violations.append(f"{evasion}: {checked_at - ended:.1f} s after the result: {left}")
        else:
            tally.gone_s.append(checked_at - ended)
        return True

    async def _wait_gone(self, ended: float) -> tuple[list[str], float]:
        """Returns the processes that are left, and when that was checked.

        The last check begins three seconds after the result, or earlier if nothing is left.
        """
        while True:
            checked = time.monotonic()
            left = [*(await self._inside()), *self._outside()]
            if not left or checked - ended >= GONE_S:
                return left, checked
            await asyncio.sleep(LOOK_EVERY_S)

    async def _inside(self) -> list[str]:
        result = await self._sandbox.run(ExecRequest(argv=("python3", "-c", LIST), timeout_s=60))
        assert result.exit_code == 0, result
        return [f"inside {process}" for process in json.loads(result.stdout)]

    def _outside(self) -> list[str]:
        """Lists the cgroup's processes, because one may hide from a listing inside."""
        if self._cgroup is None:
            return []
        left = []
        for pid in (self._cgroup / "cgroup.procs").read_text().split():
            try:
                status = Path(f"/proc/{pid}/status").read_text()
            except OSError:
                continue
            shown = dict(re.findall(r"^(Name|State|Threads):\s*(\S+)", status, re.MULTILINE))
            if shown["Name"] != "agent" and not (shown["State"] == "Z" and int(shown["Threads"]) <= 1):
                left.append(f"outside {shown}")
        return left


def _cgroup_of(sandbox: Sandbox) -> Path:
    """Returns the container's cgroup; on a hybrid machine, that of the pids controller."""
    pid = docker("inspect", "-f", "{{.State.Pid}}", f"sandlot-{sandbox.id}").stdout.decode().strip()
    lines = [line.split(":", 2) for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines()]
    by_controller = {name: path for _, names, path in lines for name in names.split(",")}
    if "pids" in by_controller:
        return Path("/sys/fs/cgroup/pids") / by_controller["pids"].lstrip("/")
    return Path("/sys/fs/cgroup") / by_controller[""].lstrip("/")


async def measure(tier: Tier, rounds: int, at_once: int) -> dict[str, Tally]:
    tallies: dict[str, Tally] = defaultdict(Tally)
    left = islice(cycle(WAYS), rounds)
    done = 0
    async with open_provider() as provider:

        async def work() -> None:
            nonlocal done
            sandbox = await provider.create(spec_for(tier))
            await sandbox.files.write("evasions.py", PROGRAM)
            target = await asyncio.to_thread(Target, sandbox, tier)
            for evasion in left:
                for _ in range(ATTEMPTS):
                    if await target.run_evasion(evasion, tallies[evasion]):
                        break
                else:
                    tallies[evasion].violations.append(f"{evasion}: has not begun in {ATTEMPTS} attempts")
                done += 1
                if done % 50 == 0:
                    progress(f"{tier}: {done} of {rounds} rounds")

        await asyncio.gather(*(work() for _ in range(at_once)))
    return tallies


def show(tier: Tier, tallies: dict[str, Tally], stolen: float) -> None:
    rows = [["", "rounds", "violations", "result late, worst s", "gone after, worst s", "not begun"]]
    for evasion in WAYS:
        tally = tallies[evasion]
        rows.append(
            [
                evasion,
                str(tally.rounds),
                str(len(tally.violations)),
                f"{max(tally.late_s, default=0):.2f}",
                f"{max(tally.gone_s, default=0):.2f}",
                str(tally.not_begun),
            ]
        )
    print(f"{tier}, {stolen:.1%} stolen by the host")
    print_table(rows)
    print()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=1000, help="rounds on each tier")
    parser.add_argument("--at-once", type=int, default=4, help="how many sandboxes run at the same time")
    parser.add_argument("--tiers", nargs="+", default=["runc", "runsc"])
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    bars: list[Bar] = []
    details: dict[str, dict[str, Any]] = {}
    for tier in map(Tier, arguments.tiers):
        before = ProcessorTime.now()
        tallies = asyncio.run(measure(tier, arguments.rounds, arguments.at_once))
        details[tier] = {evasion: asdict(tally) for evasion, tally in tallies.items()}
        if not arguments.json:
            show(tier, tallies, ProcessorTime.now().stolen_since(before))
        violations = [violation for tally in tallies.values() for violation in tally.violations]
        for violation in violations:
            progress(f"{tier}: {violation}")
        done = sum(tally.rounds for tally in tallies.values())
        bars.append(
            Bar(f"{tier}: rounds, violations", f"{done}, {len(violations)}", "0", not violations and done > 0)
        )
    sys.exit(report_bars(bars, as_json=arguments.json, tiers=details))


if __name__ == "__main__":
    main()
