"""The gate as it runs: with no time left, what every change must pass still runs, and the rest is named."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.gate import durations
from tests.gate.changes import Change
from tests.gate.groups import within
from tests.gate.plan import Rank, plan
from tests.gate.rules import ALWAYS, SUITES

pytestmark = pytest.mark.slow  # each case starts a process of its own

ROOT = Path(__file__).parents[3]


def run_pytest(*arguments: str) -> str:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=170)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def every_group() -> set[str]:
    """As pytest names them, read from the files: collecting them takes half a minute."""
    groups = set()
    for path in (ROOT / "tests").rglob("test_*.py"):
        name, text = str(path.relative_to(ROOT)), path.read_text()
        groups |= {
            f"{name}::{found}" for found in re.findall(r"^(?:class )?(Test\w+)[(:\s]", text, re.MULTILINE)
        }
        if re.search(r"^(async )?def test_", text, re.MULTILINE):
            groups.add(name)
    return groups


def test_gate_and_rotation_are_everything() -> None:
    groups = every_group()
    assert len(groups) > 150
    planned = plan(groups, {}, Change(seed="", paths=frozenset()))
    always = {group for group, one in planned.items() if one.rank is Rank.ALWAYS}
    rotated = {group for group, one in planned.items() if one.rank is Rank.ROTATED}
    assert always | rotated == groups
    assert len(always) > 50
    assert len(rotated) > 50


def test_no_rule_names_what_is_not_there() -> None:
    named = {*ALWAYS, *(suite for suites in SUITES.values() for suite in suites)}
    groups = every_group()
    assert [place for place in sorted(named) if not any(within(group, [place]) for group in groups)] == []


def test_every_group_that_was_measured_is_still_there() -> None:
    """Otherwise a renamed suite is planned as one that nobody knows: `make durations` measures anew."""
    assert durations.recorded().keys() - every_group() == set()


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
    assert json.loads(record.read_text())["tests/unit/domain/test_limits.py"] > 0
