"""The checker of the chaos run, on histories written by hand: a good one passes, and each rule can fail."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from bench.chaos.checker import HEALED_WITHIN_S
from bench.chaos.history import Event, Listed

from tests.chaos.handwritten import BOX_1, BOX_2, ONE, begun, finished


def test_a_good_history(tmp_path: Path) -> None:
    """A loss that was reported, a sandbox made anew when asked, a deletion, a second session, errors, a fault."""
    writer = begun()
    writer.run("ses_1", "x-1", 1)  # asked again
    writer.run("ses_1", "x-2", 2)
    writer.read("ses_1", "x-1", "x-2")
    writer.error("run", "unavailable", asked={"session": "ses_1", "exec": "x-3"})
    writer.error(
        "run", "sandbox_lost", asked={"session": "ses_1", "exec": "x-4"}, may_have_executed=True, loss=1
    )
    writer.create("ses_1", 2, replaces=True, loss=1)
    writer.run("ses_1", "x-5", 1, generation=2)
    writer.read("ses_1", "x-5", generation=2)
    writer.delete("ses_1")
    writer.create("ses_2")
    writer.run("ses_2", "x-6", 1)
    writer.op("list", asked={}, said={"sessions": (Listed("ses_2", 1, "active", "t", BOX_2),)})
    writer.events.append(Event("healed", writer.now, kind="redis-kill", target="redis", seconds=3.0))
    writer.events += [Event("member", float(n), target="w1", rss=100 * 2**20, fds=50) for n in range(40)]
    writer.inside("ses_2", "x-6")
    writer.end(Listed("ses_2", 1, "active", "t", BOX_2))
    assert writer.violations(tmp_path) == []


def test_answers_that_took_their_time_are_no_violation(tmp_path: Path) -> None:
    """Asked before the first sandbox was lost, answered after the second was there."""
    writer = begun()
    writer.run("ses_1", "x-2", 2, begin=5, seconds=30)
    writer.create("ses_1", 2, begin=10, replaces=True, loss=1)
    writer.run("ses_1", "x-3", 1, generation=2, begin=20)
    writer.inside("ses_1", "x-3", generation=2)
    writer.end(replace(ONE, generation=2))
    assert writer.violations(tmp_path) == []


# --- I1: one sandbox for a thread -------------------------------------------------------------------------


def test_two_sessions_of_a_thread(tmp_path: Path) -> None:
    writer = begun()
    writer.create("ses_2")
    writer.inside("ses_2")
    writer.inside("ses_1", "x-1")
    writer.end(ONE, Listed("ses_2", 1, "active", "t", BOX_2))
    assert set(writer.violations(tmp_path)) == {"I1"}


def test_two_sessions_answer_in_turn(tmp_path: Path) -> None:
    """Although one is deleted at last."""
    writer = begun()
    writer.create("ses_2", begin=1.5, seconds=0.5)
    writer.run("ses_2", "x-2", 1)
    writer.read("ses_1", "x-1")
    writer.delete("ses_2")
    assert "I1" in finished(writer).violations(tmp_path)


def test_an_older_generation_answers(tmp_path: Path) -> None:
    writer = begun()
    writer.create("ses_1", 2, replaces=True, loss=1)
    writer.read("ses_1", "x-1", generation=1)
    writer.inside("ses_1", generation=2)
    writer.end(replace(ONE, generation=2))
    assert "I1" in writer.violations(tmp_path)


def test_a_sandbox_replaced_unasked(tmp_path: Path) -> None:
    writer = begun()
    writer.create("ses_1", 2, loss=1)
    writer.inside("ses_1", generation=2)
    writer.end(replace(ONE, generation=2))
    assert writer.violations(tmp_path) == ["I1"]


def test_a_session_replaced_unasked(tmp_path: Path) -> None:
    """The delete was refused."""
    writer = begun()
    writer.error("delete", "unavailable", asked={"session": "ses_1"})
    writer.create("ses_2")
    writer.inside("ses_1", "x-1")
    writer.end(ONE, Listed("ses_2", 1, "active", "t", BOX_2))
    assert set(writer.violations(tmp_path)) == {"I1"}


def test_two_of_a_thread_in_a_list(tmp_path: Path) -> None:
    writer = begun()
    writer.op("list", asked={}, said={"sessions": (ONE, replace(ONE, id="ses_2"))})
    assert finished(writer).violations(tmp_path) == ["I1"]


# --- I2: each exec at most once, and what was acknowledged is there -------------------------------------------


def test_ran_twice(tmp_path: Path) -> None:
    assert "I2" in finished(begun(), "x-2", "x-2").violations(tmp_path)


def test_ran_twice_and_deleted_since(tmp_path: Path) -> None:
    """Seen by a client alone."""
    writer = begun()
    writer.read("ses_1", "x-1", "x-2", "x-2")
    writer.delete("ses_1")
    writer.end()
    assert writer.violations(tmp_path) == ["I2"]


def test_ran_in_two_sandboxes(tmp_path: Path) -> None:
    writer = begun()
    writer.create("ses_1", 2, replaces=True, loss=1)
    writer.inside("ses_1", "x-1", generation=2)
    writer.end(replace(ONE, generation=2))
    assert writer.violations(tmp_path) == ["I2"]


def test_acknowledged_and_not_there(tmp_path: Path) -> None:
    writer = begun()
    writer.inside("ses_1")
    writer.end(ONE)
    assert "I2" in writer.violations(tmp_path)


def test_lost_without_a_report(tmp_path: Path) -> None:
    writer = begun()
    writer.create("ses_1", 2, replaces=True)
    writer.inside("ses_1", generation=2)
    writer.end(replace(ONE, generation=2))
    assert writer.violations(tmp_path) == ["I2"]


def test_a_log_that_was_rewritten(tmp_path: Path) -> None:
    writer = begun()
    writer.read("ses_1", "x-1", "x-2", "x-3")
    writer.read("ses_1", "x-1", "x-3", "x-2", "x-4")
    assert "I2" in finished(writer, "x-3", "x-2", "x-4").violations(tmp_path)


def test_a_log_that_went_back(tmp_path: Path) -> None:
    writer = begun()
    writer.read("ses_1", "x-1", "x-2")
    assert "I2" in finished(writer).violations(tmp_path)


# --- I3: results are what is inside -----------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["2:x-2", "7:x-2", "1:x-1", "2:x-2\n3:x-2", "nonsense", ""])
def test_results(tmp_path: Path, value: str) -> None:
    writer = begun()
    writer.run("ses_1", "x-2", 2, value=value or " ")
    violations = finished(writer, "x-2").violations(tmp_path)
    assert violations == ([] if value == "2:x-2" else ["I3"])


def test_one_exec_with_two_results(tmp_path: Path) -> None:
    writer = begun()
    writer.run("ses_1", "x-2", 2)
    writer.run("ses_1", "x-2", 3)
    assert set(finished(writer, "x-2", "x-3").violations(tmp_path)) == {"I3"}


# --- I4: what has ended stays so --------------------------------------------------------------------------------


def test_a_deleted_session_answers(tmp_path: Path) -> None:
    writer = begun()
    writer.delete("ses_1")
    writer.read("ses_1", "x-1")
    writer.end()
    assert writer.violations(tmp_path) == ["I4"]


def test_a_deleted_session_is_listed(tmp_path: Path) -> None:
    writer = begun()
    writer.delete("ses_1")
    assert set(finished(writer).violations(tmp_path)) == {"I4"}


@pytest.mark.parametrize("code", ["not_found", "session_ended"])
def test_a_session_is_gone_that_nobody_deleted(tmp_path: Path, code: str) -> None:
    writer = begun()
    writer.error("read", code, asked={"session": "ses_1"})
    assert finished(writer).violations(tmp_path) == ["I4"]


# --- I5: the engine, the directory and the API agree -------------------------------------------------------------


def test_no_end(tmp_path: Path) -> None:
    writer = begun()
    writer.inside("ses_1", "x-1")
    assert writer.violations(tmp_path) == ["I5"]


@pytest.mark.parametrize(
    "changes",
    [
        {"listed": {"c1": (), "c2": (ONE,)}},
        {"directory": {}},
        {"directory": {"ses_1": "sbx_other"}},
        {"containers": {"w1": {BOX_1: "exited", "sbx_warm": "running"}}},
        {"containers": {"w1": {"sbx_warm": "running"}}},
        {"warm": {"w1": 0}},
        {"warm": {"w1": 2}},
        {"volumes": {"w1": (BOX_1, "sbx_warm", "sbx_nobody")}},
        {"volumes": {"w1": ("sbx_warm",)}},
        {"workspaces": {}},
        {"left": ("container sbx_1",)},
    ],
)
def test_ends_that_do_not_agree(tmp_path: Path, changes: dict[str, Any]) -> None:
    writer = begun()
    writer.inside("ses_1", "x-1")
    writer.end(ONE, **changes)
    assert set(writer.violations(tmp_path)) == {"I5"}


# --- I8, I9: in time, and flat --------------------------------------------------------------------------------------


def test_took_too_long(tmp_path: Path) -> None:
    writer = begun()
    writer.run("ses_1", "x-2", 2, seconds=61)
    assert finished(writer, "x-2").violations(tmp_path) == ["I8"]


def test_never_ended(tmp_path: Path) -> None:
    writer = begun()
    writer.run("ses_1", "x-2", 2)
    writer.events.pop()
    assert finished(writer).violations(tmp_path) == ["I8"]


def test_a_fault_that_does_not_heal(tmp_path: Path) -> None:
    writer = begun()
    writer.events.append(Event("healed", 9.0, kind="redis-kill", seconds=HEALED_WITHIN_S + 1))
    assert finished(writer).violations(tmp_path) == ["I8"]


@pytest.mark.parametrize(("what", "last"), [("rss", 300 * 2**20), ("fds", 500)])
def test_a_member_that_grows(tmp_path: Path, what: str, last: int) -> None:
    writer = begun()
    first = {"rss": 100 * 2**20, "fds": 50}
    for number in range(40):
        values = first if number < 30 else {**first, what: last}
        writer.events.append(Event("member", float(number), target="w1", **values))
    assert finished(writer).violations(tmp_path) == ["I9"]


def test_a_member_that_ends_by_itself(tmp_path: Path) -> None:
    writer = begun()
    writer.events.append(Event("died", 9.0, target="w1", message="code 1"))
    assert finished(writer).violations(tmp_path) == ["I9"]


def test_what_nobody_foresaw_in_a_log(tmp_path: Path) -> None:
    writer = begun()
    writer.events.append(Event("log", 9.0, target="w1", message="Traceback"))
    assert finished(writer).violations(tmp_path) == ["I12"]


# --- I12: errors are complete, foreseen and true -----------------------------------------------------------------------


@pytest.mark.parametrize("missing", ["code", "retryable", "may_have_executed", "message"])
def test_an_error_without_a_field(tmp_path: Path, missing: str) -> None:
    writer = begun()
    said = {"code": "busy", "retryable": True, "may_have_executed": False, "message": "because"}
    del said[missing]
    writer.op("run", asked={"session": "ses_1", "exec": "x-2"}, said=said, event="fail")
    assert finished(writer).violations(tmp_path) == ["I12"]


@pytest.mark.parametrize("code", ["internal", "unauthorized", "unforeseen", "sandbox_quarantined"])
def test_an_error_that_is_none_of_a_clients(tmp_path: Path, code: str) -> None:
    writer = begun()
    writer.error("read", code, asked={"session": "ses_1"}, may_have_executed=True)
    assert finished(writer).violations(tmp_path) == ["I12"]


def test_it_ran_although_its_error_said_no(tmp_path: Path) -> None:
    writer = begun()
    writer.error("run", "unavailable", asked={"session": "ses_1", "exec": "x-2"})
    assert finished(writer, "x-2").violations(tmp_path) == ["I12"]


def test_it_ran_when_it_was_asked_for_again(tmp_path: Path) -> None:
    writer = begun()
    writer.error("run", "unavailable", asked={"session": "ses_1", "exec": "x-2"})
    writer.run("ses_1", "x-2", 2)
    assert finished(writer, "x-2").violations(tmp_path) == []


def test_a_session_although_its_create_said_no(tmp_path: Path) -> None:
    writer = begun()
    writer.error("create", "unavailable", asked={"thread": "u", "tag": "c-2"})
    writer.inside("ses_1", "x-1")
    writer.end(ONE, Listed("ses_9", 1, "active", "u", BOX_2, tag="c-2"))
    assert writer.violations(tmp_path) == ["I12"]
