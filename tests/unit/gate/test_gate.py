"""The gate as it runs: with no time left, what every change must pass still runs, and the rest is named."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from tests.gate import durations
from tests.gate.changes import Change
from tests.gate.groups import group_of, within
from tests.gate.plan import Rank, plan
from tests.gate.rules import ALWAYS, SUITES, WITHOUT_SUITES, suites_of

# Each case starts a process of its own, and collecting all tests takes minutes while much else runs.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[3]
CHECK = (ROOT / "scripts" / "check").read_text()


def run_pytest(*arguments: str) -> str:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=580)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


@pytest.fixture(scope="module")
def collected() -> set[str]:
    """Every group that pytest finds when no phase and no path is named, as in `make check-all`."""
    lines = run_pytest("--collect-only").splitlines()
    return {group_of(line) for line in lines if line.startswith("tests/")}


def test_gate_and_rotation_are_everything_that_is_collected(collected: set[str]) -> None:
    files = {str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob("test_*.py")}
    assert {group.partition("::")[0] for group in collected} == files, "a folder is missing in `testpaths`"
    planned = plan(collected, {}, Change(seed="", paths=frozenset()))
    ranks = Counter(one.rank for one in planned.values())
    assert ranks.keys() == {Rank.ALWAYS, Rank.ROTATED}
    assert ranks.total() == len(collected)
    assert min(ranks.values()) > 50
    # What both phases leave to each other, together, is everything; a gate leaves out what takes minutes to build.
    assert re.findall(
        r'^    (?:parallel|alone)\).* -m "(not alone|alone)\$LEFT_OUT"', CHECK, re.MULTILINE
    ) == [
        "not alone",
        "alone",
    ]
    assert re.findall(r"LEFT_OUT=(.*?) #", CHECK) == ["", "' and not images'"]


def test_no_rule_names_what_is_not_there(collected: set[str]) -> None:
    named = {*ALWAYS, *(suite for suites in SUITES.values() for suite in suites)}
    assert [place for place in sorted(named) if not any(within(group, [place]) for group in collected)] == []


def test_every_group_that_was_measured_is_still_there(collected: set[str]) -> None:
    """Otherwise a renamed suite is planned as one that nobody knows: `make durations` measures anew."""
    for phase in (durations.PARALLEL, durations.ALONE):
        assert durations.recorded(phase).keys() - collected == set()


def test_every_file_has_a_suite(collected: set[str]) -> None:
    """Or is said to need none."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    without = [
        path
        for path in listed.stdout.splitlines()
        if not within(path, WITHOUT_SUITES)
        and not any(within(group, [*suites_of([path]), path]) for group in collected)
    ]
    assert without == []


def test_processes_keep_to_the_plan() -> None:
    """xdist on its own begins with the groups that have the most tests."""
    printed = run_pytest(
        "-vv",
        "-n1",
        "tests/fleet/test_rules.py",
        "tests/unit/fleet/test_outbox.py",
        f"--until={time.time() + 600}",
    )
    begun = list(dict.fromkeys(re.findall(r"PASSED (tests/\S+?\.py)", printed)))
    assert begun == ["tests/unit/fleet/test_outbox.py", "tests/fleet/test_rules.py"]
    assert printed.count("test_rules.py::") > printed.count("test_outbox.py::"), "it would begin otherwise"


def test_without_time_only_what_must_run_does(tmp_path: Path) -> None:
    record = tmp_path / "durations.json"
    printed = run_pytest(
        "tests/fleet/test_rules.py",
        "tests/unit/domain/test_limits.py",
        "--until=0",
        f"--record-durations={record}",
    )
    assert "left out of this gate: 11 tests in 1 groups" in printed
    assert "tests/fleet/test_rules.py" in printed
    assert "11 skipped" in printed
    assert " passed" in printed
    assert json.loads(record.read_text())["parallel"]["tests/unit/domain/test_limits.py"] > 0
