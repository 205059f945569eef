"""Checks all rules on one history. ``python -m bench.chaos.checker FILE`` checks a stored one."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from statistics import median

from bench.chaos import commands, sessions
from bench.chaos.history import Event, History, read
from bench.chaos.sightings import Observations, Violation

HEALED_WITHIN_S = 60.0
# I9 compares the last quarter of the run with the second one. A process that was just restarted is
# smaller, never larger.
RSS_GROWTH = 1.25
RSS_SPARE = 24 * 2**20
FDS_GROWTH = 1.25
FDS_SPARE = 40
SAMPLES_TO_COMPARE = 20


def within_deadlines(observed: Observations) -> Iterator[Violation]:
    for operation in observed.history.operations:
        deadline = operation.call.deadline_s
        if operation.end is None:
            yield Violation("I8", f"never ended: {operation}")
        elif deadline is not None and operation.end_at - operation.begin_at > deadline:
            yield Violation("I8", f"took longer than {deadline:.0f} s: {operation}")


def faults_heal(observed: Observations) -> Iterator[Violation]:
    for event in observed.history.of_kind("healed"):
        assert event.seconds is not None
        if event.seconds > HEALED_WITHIN_S:
            yield Violation("I8", f"{event.kind} was not over {HEALED_WITHIN_S:.0f} s after its end")


def memory_is_flat(observed: Observations) -> Iterator[Violation]:
    samples: dict[str, list[Event]] = defaultdict(list)
    for event in observed.history.of_kind("member"):
        assert event.target is not None
        samples[event.target].append(event)
    for member, found in samples.items():
        if len(found) < SAMPLES_TO_COMPARE:
            continue
        quarter = len(found) // 4
        second, last = found[quarter : 2 * quarter], found[-quarter:]
        rss = [median(event.rss or 0 for event in part) for part in (second, last)]
        fds = [median(event.fds or 0 for event in part) for part in (second, last)]
        if rss[1] > RSS_GROWTH * rss[0] + RSS_SPARE:
            yield Violation("I9", f"{member} grew from {rss[0] / 2**20:.0f} to {rss[1] / 2**20:.0f} MiB")
        if fds[1] > FDS_GROWTH * fds[0] + FDS_SPARE:
            yield Violation("I9", f"{member} grew from {fds[0]:.0f} to {fds[1]:.0f} descriptors")


def members_are_well(observed: Observations) -> Iterator[Violation]:
    for event in observed.history.of_kind("died"):
        yield Violation("I9", f"{event.target} ended by itself: {event.message}")
    for event in observed.history.of_kind("log"):
        yield Violation("I12", f"{event.target} wrote what nobody foresaw: {event.message}")


RULES: tuple[Callable[[Observations], Iterator[Violation]], ...] = (
    sessions.one_sandbox_at_a_time,
    sessions.generations_only_grow,
    sessions.replaced_only_when_asked,
    sessions.lists_name_one_per_thread,
    commands.ran_once,
    commands.nothing_is_lost,
    commands.results_are_true,
    sessions.ended_stays_ended,
    sessions.ends_agree,
    within_deadlines,
    faults_heal,
    memory_is_flat,
    members_are_well,
    commands.errors_are_true,
)


def check(events: Iterable[Event]) -> list[Violation]:
    observed = Observations(History.of(events))
    return [violation for rule in RULES for violation in rule(observed)]


def main() -> None:
    violations = check(read(Path(sys.argv[1])))
    for violation in violations:
        print(f"{violation.rule}: {violation.text}")
    sys.exit(1 if violations else 0)


if __name__ == "__main__":
    main()
