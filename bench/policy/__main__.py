"""Measures how long a decision about a command of 1 KB takes: as a worker makes it, in a process of its own,
and the reading and deciding alone.

The commands are scripts as agents write them, made of the same lines in random order.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

from bench.rig import Bar, report_bars
from sandlot.bash.process import PolicyProcess
from sandlot.bash.reading import read_text
from sandlot.config.registry.policies import shipped_policy
from sandlot.domain.policy.deciding import decide

SIZE = 1024  # bytes of a command
BAR_MS = 1.0
LINES = [
    "cd /workspace/project && python3 -m venv .venv && . .venv/bin/activate",
    "pip install -r requirements.txt 2>&1 | tail -n 5",
    'for f in $(find src -name "*.py"); do grep -q TODO "$f" && echo "$f" >> report.txt; done',
    "git status --short | awk '{print $2}' | xargs -r ls -la",
    'if [ -f package.json ]; then npm ci --silent && npm test || echo "failed: $?"; fi',
    'export PYTHONPATH="$PWD/src:${PYTHONPATH:-}"',
    "python3 - <<'PY'\nimport json, pathlib\ndata = json.loads(pathlib.Path('a.json').read_text())\nprint(len(data))\nPY",
    "tar czf out.tar.gz --exclude=.git . && mv out.tar.gz /tmp/ && rm -f report.tmp",
    'curl -sS "http://localhost:8000/health" | jq -r .status',
    'sed -i "s/foo/bar/g" src/*.py; wc -l src/*.py | sort -n | tail -3',
    "bash -c 'echo \"$1\" | tr a-z A-Z' _ hello; env LC_ALL=C sort -u names.txt > sorted.txt",
    "timeout 60 pytest -q -x tests/unit 2>&1 | tee test.log | tail -20",
]


@dataclass(frozen=True)
class Times:
    p50_ms: float
    p99_ms: float


def measure(work: Callable[[str], object], commands: list[str]) -> Times:
    took = []
    for command in commands:
        began = time.perf_counter()
        work(command)
        took.append((time.perf_counter() - began) * 1000)
    return Times(statistics.median(took), statistics.quantiles(took, n=100)[98])


def command_of_size(chance: random.Random) -> str:
    lines: list[str] = []
    while sum(map(len, lines)) + len(lines) < SIZE:
        lines.append(chance.choice(LINES))
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--commands", type=int, default=2000)
    arguments = parser.parse_args()
    chance = random.Random(1)
    commands = [command_of_size(chance) for _ in range(arguments.commands)]
    policy = shipped_policy("validation")
    with PolicyProcess(policy) as process:
        process.start()
        measure(process.decide, commands[:100])
        apart = measure(process.decide, commands)
    alone = measure(lambda command: decide(policy, read_text(command)), commands)
    average = statistics.mean(map(len, commands))
    print(f"{len(commands)} commands of {average:.0f} bytes on average, policy {policy.name}")
    print(f"decision, in its process: p50 {apart.p50_ms:.2f} ms, p99 {apart.p99_ms:.2f} ms")
    print(f"reading and deciding alone: p50 {alone.p50_ms:.2f} ms, p99 {alone.p99_ms:.2f} ms")
    bar = Bar("decision about 1 KB", f"{apart.p50_ms:.2f} ms", f"{BAR_MS:.0f} ms", apart.p50_ms <= BAR_MS)
    return report_bars([bar])


if __name__ == "__main__":
    sys.exit(main())
