"""Measures how long a decision about a command of 1 KB takes: as a worker makes it, in a process of its own,
and the reading and deciding alone.

There are four kinds of command, as agents write them. A decision costs by the programs that a command runs, not
by its bytes: a script of 1 KB runs about 36, and one that writes a file runs one.
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

CODE = [
    "import json",
    "from pathlib import Path",
    "def load(path: Path) -> dict[str, int]:",
    "    return {row['name']: int(row['count']) for row in json.loads(path.read_text())}",
    "for name, count in sorted(load(Path('data.json')).items()):",
    "    print(f'{name:20} {count:6d}  $ {count / 100:.2f}')",
]
ARGUMENTS = [
    "--no-cache-dir",
    "pandas==2.2.3",
    "tests/unit/api/test_sessions.py::test_a_session_is_deleted",
    "--ignore=tests/slow",
    "src/service/handlers/payments.py",
    "https://example.com/releases/v1.2.3/archive.tar.gz",
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


def lines_of_size(lines: list[str], separator: str, chance: random.Random) -> str:
    chosen: list[str] = []
    while sum(map(len, chosen)) + len(chosen) * len(separator) < SIZE:
        chosen.append(chance.choice(lines))
    return separator.join(chosen)


def script(chance: random.Random) -> str:
    return lines_of_size(LINES, "\n", chance)


def few_programs(chance: random.Random) -> str:
    words = lines_of_size(ARGUMENTS, " ", chance).split(" ")
    return " && ".join(
        f"{program} {' '.join(words[number::3])}"
        for number, program in enumerate(("pip install", "pytest -q", "wc -l"))
    )


def program_text(chance: random.Random) -> str:
    return f"python3 - <<'PY'\n{lines_of_size(CODE, chr(10), chance)}\nPY"


def new_file(chance: random.Random) -> str:
    return f"cat > src/report.py <<'EOF'\n{lines_of_size(CODE, chr(10), chance)}\nEOF"


KINDS: dict[str, Callable[[random.Random], str]] = {
    "a script of many programs": script,
    "few programs, many arguments": few_programs,
    "Python from a here-document": program_text,
    "a file from a here-document": new_file,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--commands", type=int, default=2000, help="of each kind")
    arguments = parser.parse_args()
    chance = random.Random(1)
    policy = shipped_policy("validation")
    bars = []
    print(f"{arguments.commands} commands of each kind, policy {policy.name}")
    print(f"{'':30}{'bytes':>6}{'steps':>6}{'alone p50':>11}{'in its process: p50':>21}{'p99':>9}")
    with PolicyProcess(policy) as process:
        process.start()
        for kind, make in KINDS.items():
            commands = [make(chance) for _ in range(arguments.commands)]
            measure(process.decide, commands[:100])
            apart = measure(process.decide, commands)
            alone = measure(lambda command: decide(policy, read_text(command)), commands)
            size = statistics.mean(map(len, commands))
            steps = statistics.mean(len(read_text(command).steps) for command in commands[:100])
            print(
                f"{kind:30}{size:6.0f}{steps:6.0f}{alone.p50_ms:8.2f} ms{apart.p50_ms:18.2f} ms"
                f"{apart.p99_ms:6.2f} ms"
            )
            bars.append(Bar(kind, f"{apart.p50_ms:.2f} ms", f"{BAR_MS:.0f} ms", apart.p50_ms <= BAR_MS))
    return report_bars(bars)


if __name__ == "__main__":
    sys.exit(main())
