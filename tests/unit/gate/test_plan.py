"""The order in which a gate runs the tests, and what it may leave out."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from tests.gate.changes import Change
from tests.gate.groups import group_of, within
from tests.gate.plan import Planned, Rank, longest_first, plan
from tests.gate.rules import ALWAYS, SUITES, suites_of

ROOT = Path(__file__).parents[3]
NOTHING = Change(seed="0" * 40, paths=frozenset())
FAULTS = "tests/faults/test_races.py"
RUNC = "tests/docker/test_conformance.py::TestRunc"
RUNSC = "tests/docker/test_conformance.py::TestRunsc"
STRAIGHT = "tests/fleet/test_straight.py"

groups = st.sets(
    st.sampled_from([FAULTS, RUNC, RUNSC, STRAIGHT, "tests/unit/a/test_b.py", "tests/c/test_d.py"])
)
paths = st.frozensets(st.sampled_from([*SUITES, *ALWAYS, FAULTS, STRAIGHT, "tests/fleet/crew.py", "LICENSE"]))


def changed(*paths: str) -> Change:
    return Change(seed="0" * 40, paths=frozenset(paths))


def test_group_of() -> None:
    assert group_of("tests/a/test_b.py::test_c") == "tests/a/test_b.py"
    assert group_of("tests/a/test_b.py::test_c[x::y]") == "tests/a/test_b.py"
    assert group_of("tests/a/test_b.py::TestD::test_c[1-[2]]") == "tests/a/test_b.py::TestD"


def test_within() -> None:
    assert within("tests/a/test_b.py::TestD", ["tests/a"])
    assert within("tests/a/test_b.py::TestD", ["tests/a/test_b.py"])
    assert within("tests/a/test_b.py", ["tests/a/test_*"])
    assert not within("tests/ab/test_b.py", ["tests/a"])
    assert not within("tests/a/test_b.py", [])


@given(groups, st.dictionaries(st.sampled_from([FAULTS, RUNSC]), st.floats(0, 1000)), paths, st.text())
def test_nothing_is_forgotten(
    names: set[str], seconds: dict[str, float], touched: frozenset[str], seed: str
) -> None:
    planned = plan(names, seconds, Change(seed, touched))
    assert planned.keys() == names
    assert [one.rank for one in planned.values()] == sorted(one.rank for one in planned.values())
    # Whatever the time, what every change must pass runs; with enough time, everything does.
    assert all(one.fits(-1) == (one.rank is Rank.ALWAYS) for one in planned.values())
    assert all(one.fits(10_000) for one in planned.values())


def test_ranks() -> None:
    def rank(group: str, *paths: str) -> Rank:
        return plan([group], {}, changed(*paths))[group].rank

    assert rank(RUNC) is Rank.ALWAYS
    assert rank(RUNSC) is Rank.ROTATED
    assert rank(RUNSC, "agent/internal/mux/mux.go") is Rank.CHANGED_CODE
    assert rank(RUNSC, "src/sandlot/providers/link/mux.py") is Rank.CHANGED_CODE
    assert rank(RUNSC, "tests/docker/test_conformance.py") is Rank.CHANGED_TESTS
    assert rank(FAULTS, "tests/faults/rig.py") is Rank.CHANGED_CODE
    assert rank(FAULTS, "tests/faults/test_load.py") is Rank.ROTATED
    assert rank(STRAIGHT, "src/sandlot/fleet/directory/scripts/place.lua") is Rank.CHANGED_CODE
    assert rank(STRAIGHT, "docs/benchmarks.md") is Rank.ROTATED
    assert rank(STRAIGHT, "tests/conftest.py", "tests/durations.json") is Rank.ROTATED
    assert (
        rank("tests/integrations/test_mcp_a.py", "tests/integrations/mcp_clients/b.py") is Rank.CHANGED_CODE
    )


def test_an_adapter_is_proved_by_its_own_suite() -> None:
    assert suites_of(["src/sandlot/integrations/pydantic_ai.py"]) == {
        "tests/integrations/test_pydantic_ai.py"
    }
    assert "tests/integrations" in suites_of(["src/sandlot/integrations/toolbox/edits.py"])


def test_the_longest_begin_first_among_what_must_run() -> None:
    names = ["tests/unit/a.py", "tests/unit/b.py", "tests/unit/c.py"]
    planned = plan(names, dict(zip(names, (1.0, 9.0, 5.0), strict=True)), NOTHING)
    assert [one.group for one in planned.values()] == [
        "tests/unit/b.py",
        "tests/unit/c.py",
        "tests/unit/a.py",
    ]


def test_a_run_of_everything_begins_with_the_longest() -> None:
    assert longest_first([RUNC, FAULTS, RUNSC], {RUNC: 1, FAULTS: 90}) == [FAULTS, RUNSC, RUNC]


def test_every_commit_has_another_order() -> None:
    names = [f"tests/faults/test_{letter}.py" for letter in "abcdefgh"]
    orders = {tuple(plan(names, {}, Change(f"{commit:040x}", frozenset()))) for commit in range(50)}
    assert len(orders) > 40
    assert {order[0] for order in orders} == set(names), "each is the first to run now and then"


def test_fits() -> None:
    assert Planned(FAULTS, Rank.ROTATED, 30).fits(30)
    assert not Planned(FAULTS, Rank.ROTATED, 30).fits(29)
    assert not Planned(FAULTS, Rank.CHANGED_TESTS, 30).fits(29)


def test_every_room_has_its_suites() -> None:
    rooms = {
        f"src/sandlot/{path.name}"
        for path in (ROOT / "src/sandlot").iterdir()
        if (path / "__init__.py").exists()
    }
    assert rooms - SUITES.keys() == set()
    missing = [source for source in SUITES if not (ROOT / source).exists()]
    assert missing == []
