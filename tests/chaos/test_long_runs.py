"""The judges of the long runs can find a fault: each is shown one, and its absence."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from bench import evasions, hostile, operator, rig, uids
from bench.attacks.culprits import ATTACKS, Outcome
from bench.attacks.probe import Measurements

from sandlot.client.options import PATIENCE_S
from sandlot.domain.environment import Tier
from sandlot.domain.execution import ExecRequest, Verdict
from sandlot.providers.docker.host.users import DEFAULT_USERS, UserRange
from tests.attacks.inside.evasions import BEGUN

SLEEPER = (7, "100")


@pytest.mark.parametrize(
    ("sight", "found"),
    [
        (uids.Snapshot({"a", "b"}, {"a": 1, "b": 2}, {SLEEPER: (1, 1)}), ""),
        (uids.Snapshot({"a"}, {"a": 1}, {}), ""),
        (uids.Snapshot({"a", "b"}, {"a": 1, "b": 1}, {}), "user 1 belongs to ['a', 'b']"),
        # Its folder is gone, and its container is still there.
        (uids.Snapshot({"a", "gone"}, {"a": 3}, {}), "user 3 belongs to ['a', 'gone']"),
        (uids.Snapshot({"a"}, {"a": 1}, {SLEEPER: (2, 2)}), "process 7 runs as [2]"),
        (uids.Snapshot({"a"}, {"a": 1}, {SLEEPER: (1, 4)}), "process 7 runs as [4]"),
    ],
)
def test_users_that_are_shared_or_left(sight: uids.Snapshot, found: str) -> None:
    wrong = uids.violations_in(sight, {"gone": 3, **sight.recorded})
    assert [one[: len(found)] for one in wrong] == ([found] if found else [])


@pytest.fixture
def as_root() -> None:
    if os.geteuid():
        pytest.skip("a file of another user is root's to make")


@pytest.mark.usefixtures("as_root")
def test_files_of_users_that_are_left(tmp_path: Path) -> None:
    # No sandbox's: what pytest keeps of them must not look like something that one has left.
    users = UserRange(DEFAULT_USERS.first - 8, DEFAULT_USERS.first - 1)
    folders = [tmp_path / name for name in ("a", "b", "never made")]
    for folder in folders[:2]:
        folder.mkdir()
        (folder / "ours").touch()
    assert uids.files_of(users, *folders) == {}
    os.chown(folders[0] / "ours", users.first, 0)
    os.chown(folders[1] / "ours", 0, users.last)
    left = {str(folders[0] / "ours"): users.first, str(folders[1] / "ours"): users.last}
    assert uids.files_of(users, *folders) == left


@pytest.mark.usefixtures("as_root")
@pytest.mark.parametrize(
    ("find", "told"),
    [
        ("exit 1", "find exited with 1"),
        ("echo 'find: /x: Permission denied' >&2; exit 1", "Permission denied"),
        ("exit 0", "did not see"),
        ("echo 'find: /x: No such file or directory' >&2; exit 1", "did not see"),
    ],
)
def test_search_that_broke(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, find: str, told: str) -> None:
    broken = tmp_path / "find"
    broken.write_text(f"#!/bin/sh\n{find}\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(RuntimeError, match=told):
        uids.files_of(DEFAULT_USERS, tmp_path)


def seen(p50_ms: float = 5.0, health_ms: float = 5.0, failed: int = 0) -> Measurements:
    return Measurements(100, failed, p50_ms, p50_ms, health_ms, health_ms, health_ms)


@pytest.mark.parametrize(
    ("beside", "quarantined", "held"),
    [
        (seen(p50_ms=9), 4, [True, True, True, True]),
        (seen(p50_ms=11), 4, [False, True, True, True]),
        (seen(failed=1), 4, [True, False, True, True]),
        (seen(health_ms=101), 4, [True, True, False, True]),
        (seen(), 3, [True, True, True, False]),
    ],
)
def test_attack_that_is_felt_or_not_reported(
    beside: Measurements, quarantined: int, held: list[bool]
) -> None:
    idle = hostile.Phase("idle", seen(), 0, 0)
    outcome = Outcome(let_loose=4, quarantined=quarantined)
    bars = hostile.bars([idle, hostile.Phase("pings", beside, 0, 0, ATTACKS["pings"], outcome), idle])
    assert [bar.held for bar in bars] == held
    assert rig.report_bars(bars) == (0 if all(held) else 1)


class Hiding:
    """A sandbox whose command leaves ``left`` behind for so many looks."""

    id = "sbx_x"

    def __init__(self, looks: int, *, begun: bool = True) -> None:
        self._looks = looks
        self._begun = begun

    async def run(self, request: ExecRequest) -> Any:
        if "evasions.py" in (request.argv or ()):
            return SimpleNamespace(verdict=Verdict.TIMEOUT, stdout=BEGUN if self._begun else b"")
        self._looks -= 1
        return SimpleNamespace(
            exit_code=0, stdout=json.dumps([["sleep", "S", 1]] * (self._looks >= 0)).encode()
        )


async def test_process_that_outlives_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evasions, "GONE_S", 0.3)
    monkeypatch.setattr(evasions, "LOOK_EVERY_S", 0.01)
    tally = evasions.Tally()
    assert await evasions.Target(Hiding(1), Tier.RUNSC).run_evasion("w", tally)  # type: ignore[arg-type]
    assert (tally.rounds, tally.violations) == (1, [])
    assert not await evasions.Target(Hiding(0, begun=False), Tier.RUNSC).run_evasion("w", tally)  # type: ignore[arg-type]
    assert (tally.rounds, tally.not_begun, tally.violations) == (1, 1, [])
    assert await evasions.Target(Hiding(10**6), Tier.RUNSC).run_evasion("w", tally)  # type: ignore[arg-type]
    assert (tally.rounds, len(tally.violations)) == (2, 1)
    assert "sleep" in tally.violations[0]


def test_outage_that_stops_its_callers_is_seen() -> None:
    """One call of 500 waits for 20 s: a hundred more would have been made in that time."""
    spent = [0.1] * 499 + [20.0]
    assert rig.p99(spent) < 1
    assert rig.p99(operator.with_missed_calls(spent)) > 15


def test_upgrade_with_a_refused_thread() -> None:
    load = operator.Load(threads=[0.1, 0.2], execs=[0.1])
    assert all(bar.held for bar in operator.judge_upgrade(load, 3, 3))
    load.refused_threads.append("t")
    assert [bar.held for bar in operator.judge_upgrade(load, 3, 3)] == [False, True, True, True]
    slow = operator.Load(threads=[0.1, 6.5], execs=[0.1], refused_execs=["x"])
    assert [bar.held for bar in operator.judge_upgrade(slow, 2, 3)] == [True, False, False, False]


def test_create_that_is_late_or_fails() -> None:
    late = PATIENCE_S + 0.1
    tried = [(0.2, ""), (late, ""), (0.2, "unavailable")]
    assert [operator.judge_create(40, *one).held for one in tried] == [True, False, False]
