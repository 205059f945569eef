"""Rates: exact over any time, whatever the order of events."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandlot.domain.callers import rates
from sandlot.domain.callers.rates import Rate, RatesInMemory, take

PER_S = st.floats(0.01, 2000, allow_nan=False)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@given(PER_S, st.lists(st.floats(0, 3, allow_nan=False), max_size=200))
def test_never_more_than_the_rate_and_its_burst(per_s: float, pauses: list[float]) -> None:
    """In every stretch of time: at most the burst, and what the rate adds meanwhile."""
    rate, now, due = Rate("r", per_s), 1000.0, 0.0
    allowed: list[float] = []
    for pause in pauses:
        now += pause
        due, taken = take(rate, due, now)
        assert taken.left >= 0
        if taken.wait_s == 0:
            allowed.append(now)
    for begin in range(len(allowed)):
        for end in range(begin, len(allowed)):
            most = rate.burst + (allowed[end] - allowed[begin]) * per_s
            assert end - begin + 1 <= most + 1e-3


@given(PER_S)
def test_none_too_few(per_s: float) -> None:
    """A caller at rest gets its whole burst, and one more after each interval."""
    rate, now, due = Rate("r", per_s), 1000.0, 0.0
    for left in reversed(range(rate.burst)):
        due, taken = take(rate, due, now)
        assert (taken.wait_s, taken.left) == (0.0, left)
    _, refused = take(rate, due, now)
    assert 0 < refused.wait_s <= rate.interval_s * (1 + 1e-6)
    _, taken = take(rate, due, now + refused.wait_s)
    assert taken.wait_s == 0


def test_refusals_do_not_put_it_off() -> None:
    rate, due = Rate("r", 1.0), 0.0
    due, _ = take(rate, due, 100.0)
    for _ in range(50):
        due, refused = take(rate, due, 100.5)
        assert refused.wait_s == pytest.approx(0.5)
    _, taken = take(rate, due, 101.0)
    assert taken.wait_s == 0


@pytest.mark.parametrize("due", [1e12, math.inf])
def test_a_clock_that_was_set_back(due: float) -> None:
    _, refused = take(Rate("r", 2.0), due, 100.0)
    assert refused.wait_s == pytest.approx(0.5)


def test_all_or_none() -> None:
    clock = Clock()
    memory = RatesInMemory(clock)
    many, few = Rate("many", 10.0), Rate("few", 1.0)
    assert [taken.wait_s for taken in memory.take_now([many, few])] == [0, 0]
    for _ in range(20):
        assert memory.take_now([many, few])[1].wait_s == pytest.approx(1.0)
    # The refused events did not count for the other rate either.
    assert memory.take_now([many])[0].left == 8
    clock.now += 1.0
    assert [taken.wait_s for taken in memory.take_now([many, few])] == [0, 0]


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates, "MAX_REMEMBERED", 10)
    clock = Clock()
    memory = RatesInMemory(clock)
    for number in range(100):
        clock.now += 2.0
        memory.take_now([Rate(f"r{number}", 1.0)])
    assert len(memory._due) <= 12
