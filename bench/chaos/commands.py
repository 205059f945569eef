"""The rules for commands.

Each id runs at most once (I2), results match the log inside the sandbox (I3), and errors are true
(I12).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import pairwise

from bench.chaos.history import Operation
from bench.chaos.sightings import Observations, Reading, Sandbox, Violation

# Errors that a fault may cause. Any other error means that the fleet or the client is broken.
EXPECTED_ERRORS = frozenset(
    {
        "busy",
        "conflict",
        "engine_problem",
        "engine_timeout",
        "link_interrupted",
        "not_found",
        "sandbox_lost",
        "session_ended",
        "unavailable",
    }
)


def ran_once(observed: Observations) -> Iterator[Violation]:
    where: dict[str, set[Sandbox]] = defaultdict(set)
    for reading in observed.readings:
        for line, times in Counter(reading.lines).items():
            where[line].add(reading.sandbox)
            if times > 1:
                yield Violation("I2", f"{line} ran {times} times in {reading.sandbox}: {reading.what}")
    for run in _acknowledged(observed):
        assert run.call.exec is not None
        where[run.call.exec].add(_sandbox(run))
    for line, sandboxes in where.items():
        if len(sandboxes) > 1:
            yield Violation("I2", f"{line} ran in {', '.join(map(str, sorted(sandboxes)))}")


def nothing_is_lost(observed: Observations) -> Iterator[Violation]:
    """Every later reading of a sandbox contains each acknowledged command.

    If no client can read the sandbox any more, it was reported as lost or its session was deleted.
    """
    readings: dict[Sandbox, list[Reading]] = defaultdict(list)
    for reading in observed.readings:
        readings[reading.sandbox].append(reading)
    for run in _acknowledged(observed):
        sandbox = _sandbox(run)
        later = [reading for reading in readings[sandbox] if reading.begin >= run.end_at]
        for reading in later:
            if run.call.exec not in reading.lines:
                yield Violation("I2", f"acknowledged and not there: {run} | {reading.what}")
                break
        if (
            not later
            and sandbox not in observed.losses
            and not observed.deleted_before(sandbox.session, float("inf"))
        ):
            yield Violation("I2", f"lost without a report: {run}")
    for found in readings.values():
        yield from _only_grows(found)


def _only_grows(readings: list[Reading]) -> Iterator[Violation]:
    ordered = sorted(readings, key=lambda reading: len(reading.lines))
    for shorter, longer in pairwise(ordered):
        if longer.lines[: len(shorter.lines)] != shorter.lines:
            yield Violation("I2", f"{shorter.sandbox}'s log was rewritten: {shorter.what} | {longer.what}")
        elif len(shorter.lines) < len(longer.lines) and longer.end <= shorter.begin:
            yield Violation("I2", f"{shorter.sandbox}'s log went back: {longer.what} | {shorter.what}")


def results_are_true(observed: Observations) -> Iterator[Violation]:
    """A command's answer is the number of its line in the log."""
    readings: dict[Sandbox, list[Reading]] = defaultdict(list)
    for reading in observed.readings:
        readings[reading.sandbox].append(reading)
    answers: dict[str, Operation] = {}
    for run in _acknowledged(observed):
        assert run.end is not None
        assert run.call.exec is not None
        first = answers.setdefault(run.call.exec, run)
        assert first.end is not None
        if run.end.value != first.end.value:
            yield Violation("I3", f"one exec has two results: {first} | {run}")
        position = _line_number(run)
        if position is None:
            yield Violation("I3", f"not what the command prints: {run}")
            continue
        for reading in readings[_sandbox(run)]:
            if len(reading.lines) >= position:
                if reading.lines[position - 1] != run.call.exec:
                    yield Violation("I3", f"another line stands there: {run} | {reading.what}")
                    break
            elif reading.begin >= run.end_at:
                yield Violation("I3", f"the log is shorter than that: {run} | {reading.what}")
                break


def errors_are_true(observed: Observations) -> Iterator[Violation]:
    tries: dict[str, list[Operation]] = defaultdict(list)
    for operation in observed.history.operations:
        if operation.call.do == "run" and operation.call.exec is not None:
            tries[operation.call.exec].append(operation)
        end = operation.end
        if end is None or end.event == "ok":
            continue
        if not end.code or end.retryable is None or end.may_have_executed is None or not end.message:
            yield Violation("I12", f"an error without its fields: {operation}")
        elif end.code not in EXPECTED_ERRORS and end.code != "deadline":
            yield Violation("I12", f"no error for a client: {operation}: {end.message}")
    inside = {line: reading for reading in observed.readings for line in reading.lines}
    for line, operations in tries.items():
        if line in inside and all(operation.did_nothing for operation in operations):
            yield Violation(
                "I12", f"it ran although its error said no: {operations[-1]} | {inside[line].what}"
            )
    yield from _creates_did_nothing(observed)


def _creates_did_nothing(observed: Observations) -> Iterator[Violation]:
    refused = {
        operation.call.tag: operation
        for operation in observed.history.operations
        if operation.call.tag is not None and operation.did_nothing
    }
    for event in observed.history.of_kind("end"):
        assert event.ending is not None
        listed = {row.tag: row.id for rows in event.ending.listed.values() for row in rows}
        for tag in refused.keys() & listed.keys():
            yield Violation("I12", f"{listed[tag]} exists although its create said no: {refused[tag]}")


def _acknowledged(observed: Observations) -> Iterator[Operation]:
    for operation in observed.history.called("run"):
        if operation.ok:
            yield operation


def _sandbox(run: Operation) -> Sandbox:
    assert run.end is not None
    assert run.session is not None
    assert run.end.generation is not None
    return Sandbox(run.session, run.end.generation)


def _line_number(run: Operation) -> int | None:
    """``12:x-3-7``: the line number and the line, as grep -n prints them."""
    assert run.end is not None
    number, colon, line = (run.end.value or "").strip().partition(":")
    return int(number) if colon and number.isdecimal() and int(number) > 0 and line == run.call.exec else None
