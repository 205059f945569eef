from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandlot.domain.errors import InvalidRequest
from sandlot.domain.paging import parse_place, place_of
from sandlot.fleet.directory.contract import Timings, WorkerState
from sandlot.fleet.directory.rules import MAX_SETTLING_LEASES, extend_settling, worker_state
from sandlot.testing.directory_suite.harness import a_session

TIMES = st.floats(0, 1e6)


@pytest.mark.parametrize(
    ("now", "state"),
    [
        (0, WorkerState.ALIVE),
        (9.9, WorkerState.ALIVE),
        (10, WorkerState.LATE),
        (69.9, WorkerState.LATE),
        (70, WorkerState.GONE),
        (1e9, WorkerState.GONE),
    ],
)
def test_state_of_a_lease(now: float, state: WorkerState) -> None:
    assert worker_state(now, lease_end=10, lost_after=60) is state


@given(born=TIMES, passed=TIMES, settles_in=st.floats(0, 1000), lease=st.floats(0.1, 100))
def test_settling_is_bounded_and_final(born: float, passed: float, settles_in: float, lease: float) -> None:
    now, settles = born + passed, born + min(settles_in, MAX_SETTLING_LEASES * lease)
    after = extend_settling(settles, born, now, lease)
    assert settles <= after <= max(settles, born + MAX_SETTLING_LEASES * lease)
    if now >= settles:
        assert after == settles


def test_cursors() -> None:
    older, younger = a_session(age=5), a_session()
    assert place_of(older) < place_of(younger)
    created, session_id = parse_place(place_of(older), "ses")
    assert (float(created), session_id) == (older.created_at, older.id)
    with pytest.raises(InvalidRequest):
        parse_place(older.id, "ses")


@pytest.mark.parametrize(("lease_s", "lost_after_s"), [(0, 60), (10, 9), (-1, 5)])
def test_timings_that_cannot_be(lease_s: float, lost_after_s: float) -> None:
    with pytest.raises(InvalidRequest):
        Timings(lease_s=lease_s, lost_after_s=lost_after_s)
