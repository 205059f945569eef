"""A session's limits out of its environment's and what it asks for."""

from __future__ import annotations

import math
from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandlot.domain.capacity.limits import MIB, LimitChange, Limits
from sandlot.domain.errors import InvalidRequest

MEMORY = st.integers(32 * MIB, 4096 * MIB)
CPUS = st.floats(0.05, 64)
COUNTS = st.integers(64, 65_536)
ROOM = st.integers(MIB, 1024 * MIB)
LIMITS = st.builds(Limits, MEMORY, CPUS, COUNTS, ROOM, ROOM, COUNTS)
CHANGES = st.builds(LimitChange, *(st.none() | kind for kind in (MEMORY, CPUS, COUNTS, ROOM, ROOM, COUNTS)))


@given(LIMITS, CHANGES)
def test_what_is_asked_for_is_changed_and_nothing_else(limits: Limits, change: LimitChange) -> None:
    before, asked, after = asdict(limits), asdict(change), asdict(change.apply(limits))
    assert after == {name: before[name] if asked[name] is None else asked[name] for name in before}


@given(LIMITS, CHANGES)
def test_applying_twice_is_applying_once(limits: Limits, change: LimitChange) -> None:
    assert change.apply(change.apply(limits)) == change.apply(limits)


def test_every_limit_can_be_changed() -> None:
    assert asdict(LimitChange()) == dict.fromkeys(asdict(Limits()))


@pytest.mark.parametrize(
    "change",
    [
        LimitChange(memory_bytes=32 * MIB - 1),
        LimitChange(memory_bytes=2**50),
        LimitChange(cpus=0),
        LimitChange(cpus=math.nan),
        LimitChange(cpus=math.inf),
        LimitChange(pids=31),
        LimitChange(tmp_bytes=0),
        LimitChange(shm_bytes=-1),
        LimitChange(open_files=2**31),
    ],
    ids=repr,
)
def test_out_of_bounds_is_refused_by_name(change: LimitChange) -> None:
    name = next(name for name, value in asdict(change).items() if value is not None)
    with pytest.raises(InvalidRequest, match=name):
        change.apply(Limits())
