"""Runs the tests group by group, over several processes, in the order of the plan.

``--until`` makes a run a gate: groups that are not needed by every change begin only if they will end by then. What is
left out is counted and listed, what the change needs first.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from tests.gate import durations
from tests.gate.changes import Change, NoHistory, current_change
from tests.gate.groups import group_of
from tests.gate.plan import Planned, Rank, longest_first, plan
from tests.gate.races import Races

LEFT_OUT = "left out: the gate's time is up"
CHANGE = "gate_change"  # what the controller tells its test processes, so that all of them plan alike


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("gate")
    group.addoption(
        "--until",
        type=float,
        metavar="EPOCH",
        help="leave out what would not end by this time, but for what every change must pass",
    )
    group.addoption(
        "--record-durations",
        type=Path,
        metavar="FILE",
        help="add how long each group took to this file (see `make durations`)",
    )
    group.addoption(
        "--note-races",
        type=Path,
        metavar="FILE",
        help="write the names of tests that may have lost a race to this file",
    )


def pytest_configure(config: pytest.Config) -> None:
    until = config.option.until
    phase = durations.phase_of(config.option.markexpr)
    told = getattr(config, "workerinput", None)  # which a process has that runs tests for another one
    change = None if until is None else Change(**told[CHANGE]) if told else _ask_git()
    if told or until is not None or getattr(config.option, "dist", "no") != "no":
        config.pluginmanager.register(Ordering(until, phase, change), "gate-ordering")
    if not told:
        config.pluginmanager.register(Report(config.option.record_durations, phase, change), "gate-report")
        if config.option.note_races is not None:
            config.pluginmanager.register(Races(config.option.note_races), "gate-races")


def _ask_git() -> Change:
    try:
        return current_change()
    except NoHistory as problem:
        return Change(seed="", paths=frozenset(), since=f"nobody knows what changed: {problem}")


class Ordering:
    """In the processes that run tests: which comes next, and what there is no time for."""

    def __init__(self, until: float | None, phase: str, change: Change | None) -> None:
        self._until = until
        self._phase = phase
        self._change = change
        self._planned: dict[str, Planned] = {}
        self._begun: set[str] = set()

    @pytest.hookimpl(trylast=True)  # after -m and -k have taken out what they do
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        groups = [group_of(item.nodeid) for item in items]
        seconds = durations.recorded(self._phase)
        if self._change is None:
            order = longest_first(groups, seconds)
        else:
            self._planned = plan(groups, seconds, self._change)
            order = list(self._planned)
        position = {group: number for number, group in enumerate(order)}
        items.sort(key=lambda item: position[group_of(item.nodeid)])

    @pytest.hookimpl(tryfirst=True)  # before any fixture is set up
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        if self._until is None:
            return
        one = self._planned[group_of(item.nodeid)]
        left = self._until - time.time()
        begun = one.group in self._begun
        if one.rank is Rank.ALWAYS or (left > 0 and (begun or one.fits(left))):
            self._begun.add(one.group)
        else:
            pytest.skip(LEFT_OUT)

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        if self._change is not None:
            node.workerinput[CHANGE] = asdict(self._change)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> object:
        from xdist.scheduler import LoadScopeScheduling  # here: a run without -n need not have it

        class ByGroup(LoadScopeScheduling):
            def _split_scope(self, nodeid: str) -> str:
                return group_of(nodeid)

        config.option.loadscopereorder = False  # else by their number of tests, whatever the plan says
        return ByGroup(config, log)


class Report:
    """Where the run is reported: what was left out, and how long each group took."""

    def __init__(self, record_to: Path | None, phase: str, change: Change | None) -> None:
        self._record_to = record_to
        self._phase = phase
        self._change = change
        self._seconds: dict[str, float] = defaultdict(float)
        self._left_out: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        group = group_of(report.nodeid)
        self._seconds[group] += report.duration
        if report.skipped and LEFT_OUT in str(report.longrepr):
            self._left_out[group] += 1

    def pytest_sessionfinish(self) -> None:
        if self._record_to is not None:
            durations.record(self._phase, self._seconds, self._record_to)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._change is None:
            return
        terminalreporter.section(
            f"left out of this gate: {sum(self._left_out.values())} tests in {len(self._left_out)} groups"
        )
        terminalreporter.line(f"The change: {self._change.since}.")
        if not self._left_out:
            return
        planned = plan(self._left_out, durations.recorded(self._phase), self._change)
        for one in planned.values():
            why = "" if one.rank is Rank.ROTATED else "  <- this change needs it"
            terminalreporter.line(
                f"{self._left_out[one.group]:5} tests {one.seconds:7.1f} s  {one.group}{why}"
            )
        terminalreporter.line("`make check-all` runs them all; `python -m pytest <name>` runs one.")
