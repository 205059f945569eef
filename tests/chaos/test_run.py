"""The chaos run in its short form: a minute of faults, no rule broken; and a run that must fail does."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from bench.chaos.checker import check
from bench.chaos.history import History, read
from bench.chaos.run import Plan, run

pytestmark = [pytest.mark.docker, pytest.mark.slow]


@pytest.mark.timeout(600)  # a minute of load, then at most four until all has settled and is removed
async def test_a_minute_of_faults(tmp_path: Path) -> None:
    history = tmp_path / "history.jsonl"
    await run(Plan(minutes=1, seed=5, pause_s=(3, 6)), history)
    violations = check(read(history))
    assert not violations, "\n".join(f"{rule}: {text}" for rule, text in violations)
    story = History.of(read(history))
    # It was a run: everything was done, and most of it was answered.
    assert {operation.call.do for operation in story.operations} >= {
        "create",
        "run",
        "read",
        "delete",
        "list",
    }
    assert sum(operation.ok for operation in story.operations) > 100
    assert len(story.of_kind("healed")) >= 4


@pytest.mark.timeout(400)
def test_a_client_that_lies_is_found_out(tmp_path: Path) -> None:
    """The whole command, on a real fleet: what each seeded bug breaks is shown in ``test_clients``."""
    command = [
        *(sys.executable, "-m", "bench.chaos", "--minutes", "0.4", "--no-faults", "--workers", "1"),
        *("--seed-bug", "double-run", "--history", str(tmp_path / "history.jsonl"), "--json"),
    ]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=380)
    assert ran.returncode == 1, ran.stderr
    assert json.loads(ran.stdout)["violations"]["I2"] > 0
