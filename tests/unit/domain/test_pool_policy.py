"""How many warm sandboxes to hold: numbers in, decisions out."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandlot.domain.capacity.pool import (
    DEMAND_WINDOW_S,
    FIRST_BACKOFF_S,
    HEADROOM,
    MAX_BACKOFF_S,
    Demand,
    Occupancy,
    PoolPolicy,
    backoff_s,
    target,
    to_drop,
    to_make,
)
from sandlot.domain.errors import InvalidRequest

COUNTS = st.integers(0, 200)
OCCUPANCIES = st.builds(Occupancy, ready=COUNTS, making=COUNTS, waiting=COUNTS)
POLICIES = st.lists(COUNTS, min_size=3, max_size=3).map(
    lambda sizes: PoolPolicy(min=sorted(sizes)[0], size=sorted(sizes)[1], max=sorted(sizes)[2])
)
# Seconds between one claim and the next; the clock is read as a fraction.
GAPS = st.lists(st.floats(0, 3) | st.floats(0, DEMAND_WINDOW_S), max_size=60)


@pytest.mark.parametrize(("low", "size", "high"), [(-1, 0, 1), (3, 2, 5), (1, 6, 5), (2, 1, 1)])
def test_policy_out_of_order_is_refused(low: int, size: int, high: int) -> None:
    with pytest.raises(InvalidRequest, match="min"):
        PoolPolicy(min=low, size=size, max=high)


# --- demand -----------------------------------------------------------------------------------


@given(GAPS, st.floats(0.01, 30), st.floats(0, 2 * DEMAND_WINDOW_S))
def test_peak_is_what_counting_naively_gives(gaps: list[float], span_s: float, later: float) -> None:
    demand, now, claims = Demand(), 5000.0, []
    for gap in gaps:
        now += gap
        demand.record_claim(now)
        claims.append(int(now))
    now += later
    remembered = [second for second in claims if second >= int(now) - DEMAND_WINDOW_S]
    span = max(1, math.ceil(span_s))
    naive = max((sum(start <= s < start + span for s in remembered) for start in remembered), default=0)
    assert demand.peak(now, span_s) == naive


def test_claims_are_forgotten_after_the_window() -> None:
    demand = Demand()
    for _ in range(40):
        demand.record_claim(1000.0)
    assert demand.peak(1000.0 + DEMAND_WINDOW_S, 1) == 40
    assert demand.peak(1001.0 + DEMAND_WINDOW_S, 1) == 0


@given(st.lists(st.floats(0, 1e6), max_size=200))
def test_memory_is_bounded_whatever_the_clock_does(times: list[float]) -> None:
    demand = Demand()
    for now in times:
        demand.record_claim(now)
    assert len(demand._seconds) <= DEMAND_WINDOW_S + 1
    assert demand.peak(max(times, default=0.0), 10) <= len(times)


def test_years_of_claims_take_one_window_of_memory() -> None:
    demand = Demand()
    for second in range(5 * DEMAND_WINDOW_S):
        demand.record_claim(float(second))
    assert len(demand._seconds) == DEMAND_WINDOW_S + 1


# --- target -----------------------------------------------------------------------------------


@given(POLICIES, COUNTS, st.floats(0, 60), st.floats(0, 2 * DEMAND_WINDOW_S))
def test_target_is_within_the_bounds_and_says_why(
    policy: PoolPolicy, peak: int, refill_s: float, quiet_for_s: float
) -> None:
    wanted = target(policy, peak, refill_s, quiet_for_s)
    assert policy.min <= wanted.size <= policy.max
    assert wanted.reason
    assert ("limited to" in wanted.reason) == (wanted.suggested > wanted.size)


@given(POLICIES, COUNTS)
def test_demand_raises_the_target_above_the_configured_size(policy: PoolPolicy, peak: int) -> None:
    wanted = target(policy, peak, 1.0, 0.0)
    assert wanted.size == max(policy.size, min(policy.max, math.ceil(peak * HEADROOM)))
    assert wanted.suggested >= peak


@given(POLICIES, COUNTS)
def test_more_demand_never_means_fewer(policy: PoolPolicy, peak: int) -> None:
    assert target(policy, peak + 1, 1.0, 0.0).size >= target(policy, peak, 1.0, 0.0).size


@given(POLICIES)
def test_minimum_is_held_once_nobody_comes(policy: PoolPolicy) -> None:
    assert target(policy, 0, 1.0, DEMAND_WINDOW_S - 0.1).size == policy.size
    assert target(policy, 0, 1.0, DEMAND_WINDOW_S).size == policy.min


# --- making and dropping ----------------------------------------------------------------------


@given(OCCUPANCIES, COUNTS, COUNTS, st.booleans())
def test_waiters_are_always_covered(occupancy: Occupancy, wanted: int, low: int, quiet: bool) -> None:
    make = to_make(occupancy, wanted, low, quiet=quiet)
    assert make >= 0
    assert occupancy.ready + occupancy.making + make >= occupancy.waiting


@given(OCCUPANCIES, COUNTS, COUNTS)
def test_quiet_fills_to_the_target_and_no_further(occupancy: Occupancy, wanted: int, low: int) -> None:
    there = occupancy.ready + occupancy.making
    made = there + to_make(occupancy, wanted, low, quiet=True)
    assert made == max(there, wanted + occupancy.waiting)


@given(OCCUPANCIES, COUNTS, COUNTS)
def test_burst_makes_no_more_than_the_minimum_to_spare(occupancy: Occupancy, wanted: int, low: int) -> None:
    busy = to_make(occupancy, wanted, low, quiet=False)
    assert busy <= to_make(occupancy, wanted, low, quiet=True)
    assert busy == 0 or occupancy.ready + occupancy.making + busy - occupancy.waiting <= low


@given(OCCUPANCIES, COUNTS)
def test_dropping_leaves_the_target_and_nobody_waiting(occupancy: Occupancy, wanted: int) -> None:
    drop = to_drop(occupancy, wanted)
    assert 0 <= drop <= occupancy.ready
    if drop:
        assert occupancy.waiting == 0
        assert occupancy.ready - drop == wanted


@given(OCCUPANCIES, COUNTS, COUNTS, st.booleans())
def test_nothing_is_made_and_dropped_at_once(
    occupancy: Occupancy, wanted: int, low: int, quiet: bool
) -> None:
    drop = to_drop(occupancy, wanted)
    assert not (drop and to_make(occupancy, wanted, low, quiet=quiet))


def test_target_that_wavers_by_one_drops_nothing() -> None:
    assert to_drop(Occupancy(ready=6, making=0, waiting=0), 5) == 0
    assert to_drop(Occupancy(ready=7, making=0, waiting=0), 5) == 2


# --- backoff ----------------------------------------------------------------------------------


def test_backoff_doubles_up_to_its_bound() -> None:
    assert [backoff_s(failures) for failures in range(9)] == [
        0, 1, 2, 4, 8, 16, 32, 60, 60,
    ]  # fmt: skip


@given(st.integers(-10, 10**9))
def test_backoff_is_bounded_and_grows(failures: int) -> None:
    assert 0 <= backoff_s(failures) <= backoff_s(failures + 1) <= MAX_BACKOFF_S
    assert failures <= 0 or backoff_s(failures) >= FIRST_BACKOFF_S
