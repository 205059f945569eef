"""In which order groups run, so that what matters most for a change comes before the time is up."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum

from tests.gate.changes import Change
from tests.gate.durations import UNKNOWN_S
from tests.gate.groups import within
from tests.gate.rules import ALWAYS, suites_of


class Rank(IntEnum):
    """Why a group runs. All but ``ALWAYS`` begin only if they will end in time."""

    ALWAYS = 0
    CHANGED_TESTS = 1
    CHANGED_CODE = 2
    ROTATED = 3


@dataclass(frozen=True)
class Planned:
    group: str
    rank: Rank
    seconds: float

    def fits(self, seconds_left: float) -> bool:
        return self.rank is Rank.ALWAYS or self.seconds <= seconds_left


def plan(groups: Iterable[str], seconds: Mapping[str, float], change: Change) -> dict[str, Planned]:
    """Every group, in the order in which they are to begin."""
    suites = suites_of(change.paths)
    planned = [
        Planned(group, _rank(group, change, suites), seconds.get(group, UNKNOWN_S)) for group in set(groups)
    ]

    def key(one: Planned) -> tuple[int, float, str]:
        if one.rank <= Rank.CHANGED_TESTS:
            return (one.rank, -one.seconds, one.group)
        # In another order with every commit, so that none is always the one that is left out.
        return (one.rank, 0, hashlib.sha256(f"{change.seed} {one.group}".encode()).hexdigest())

    return {one.group: one for one in sorted(planned, key=key)}


def longest_first(groups: Iterable[str], seconds: Mapping[str, float]) -> list[str]:
    """For a run of everything: what begins last keeps one process busy while the others are done."""
    return sorted(set(groups), key=lambda group: (-seconds.get(group, UNKNOWN_S), group))


def _rank(group: str, change: Change, suites: frozenset[str]) -> Rank:
    if within(group, ALWAYS):
        return Rank.ALWAYS
    if within(group, change.paths):
        return Rank.CHANGED_TESTS
    if within(group, suites):
        return Rank.CHANGED_CODE
    return Rank.ROTATED
