"""How many warm sandboxes to hold, and when to make the next one. Pure: numbers in, decisions out.

The target is the highest recent number of claims within one refill, times 1.5, and stays between
the environment's minimum and maximum. Each target carries its reason in words.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from sandlot.domain.errors import InvalidRequest

DEFAULT_POOL_SIZE = 5
DEFAULT_MIN_POOL_SIZE = 2
DEFAULT_MAX_POOL_SIZE = 20
# Seconds for which claims are remembered: long enough to see a pattern, short enough to shrink at
# night.
DEMAND_WINDOW_S = 600
HEADROOM = 1.5
# Sandboxes beyond the minimum are made only after this many seconds without a claim. Making one
# takes a processor, and a burst of claims needs it more.
QUIET_S = 0.25
# Seconds to wait after a sandbox could not be made: the first wait, doubled each time up to the
# maximum.
FIRST_BACKOFF_S = 1.0
MAX_BACKOFF_S = 60.0


@dataclass(frozen=True, slots=True)
class PoolPolicy:
    """How many warm sandboxes a pool holds.

    It holds ``size`` while there are occasional claims, up to ``max`` on demand, and ``min`` once
    claims have stopped.
    """

    size: int = DEFAULT_POOL_SIZE
    min: int = DEFAULT_MIN_POOL_SIZE
    max: int = DEFAULT_MAX_POOL_SIZE

    def __post_init__(self) -> None:
        if not 0 <= self.min <= self.size <= self.max:
            raise InvalidRequest(
                f"A pool needs 0 ≤ min ≤ size ≤ max, but has min {self.min}, size {self.size}, max "
                f"{self.max}."
            )


@dataclass(frozen=True, slots=True)
class PoolStats:
    """The warm sandboxes of one environment.

    ready: how many are ready to use.
    making: how many are being created.
    waiting: how many requests wait for one.
    target: how many the pool wants to hold.
    target_reason: why, in words.
    hits: requests that got a warm sandbox.
    misses: requests that did not, by reason.
    claim_ms_p50: the median time of the latest claims, in milliseconds.
    suggested_size: the pool size that would have served the recent demand.
    failures: how many creations failed in a row.
    last_failure: the last failure, in words.
    """

    ready: int
    making: int
    waiting: int
    target: int
    target_reason: str
    hits: int
    misses: Mapping[str, int] = field(default_factory=dict)
    claim_ms_p50: float = 0.0
    suggested_size: int = 0
    failures: int = 0
    last_failure: str = ""


@dataclass(frozen=True, slots=True)
class Target:
    size: int
    suggested: int
    reason: str


class Demand:
    """Counts claims per second over the last ``DEMAND_WINDOW_S`` seconds, in bounded memory."""

    def __init__(self) -> None:
        self._seconds: deque[tuple[int, int]] = deque()

    def record_claim(self, now: float) -> None:
        second = int(now)
        if self._seconds and self._seconds[-1][0] >= second:
            last, count = self._seconds[-1]
            self._seconds[-1] = (last, count + 1)
        else:
            self._seconds.append((second, 1))
        self._forget(second)

    def peak(self, now: float, span_s: float) -> int:
        """The most claims within any ``span_s`` seconds of the window."""
        self._forget(int(now))
        span = max(1, math.ceil(span_s))
        best = total = 0
        window: deque[tuple[int, int]] = deque()
        for second, count in self._seconds:
            window.append((second, count))
            total += count
            while window[0][0] <= second - span:
                total -= window.popleft()[1]
            best = max(best, total)
        return best

    def _forget(self, second: int) -> None:
        while self._seconds and self._seconds[0][0] < second - DEMAND_WINDOW_S:
            self._seconds.popleft()


def target(policy: PoolPolicy, peak: int, refill_s: float, quiet_for_s: float) -> Target:
    """How many warm sandboxes to hold.

    ``peak``: the most claims within one refill. ``quiet_for_s``: seconds since the last claim or
    the start.
    """
    if quiet_for_s >= DEMAND_WINDOW_S:
        return Target(policy.min, policy.min, f"no claims for {DEMAND_WINDOW_S // 60} minutes: the minimum")
    wanted = math.ceil(peak * HEADROOM)
    if wanted <= policy.size:
        return Target(policy.size, max(wanted, policy.min), "demand fits the configured size")
    reason = f"at most {peak} claims during one refill of {refill_s:.1f} s, plus half"
    if wanted > policy.max:
        return Target(policy.max, wanted, f"{reason}: limited to the maximum")
    return Target(wanted, wanted, reason)


@dataclass(frozen=True, slots=True)
class Occupancy:
    ready: int
    making: int
    waiting: int


def to_make(occupancy: Occupancy, wanted: int, minimum: int, *, quiet: bool) -> int:
    """How many more sandboxes to start making now.

    Waiting requests come first. Spare sandboxes beyond the minimum wait for a quiet moment.
    """
    spare = wanted if quiet else min(minimum, wanted)
    return max(0, occupancy.waiting + spare - occupancy.ready - occupancy.making)


def to_drop(occupancy: Occupancy, wanted: int) -> int:
    """How many warm sandboxes are too many.

    One extra is tolerated, so that a wavering target does not make and drop sandboxes all the time.
    """
    excess = occupancy.ready - wanted
    return excess if excess > 1 and occupancy.waiting == 0 else 0


def backoff_s(failures: int) -> float:
    """Seconds to wait after this many failures in a row."""
    if failures <= 0:
        return 0.0
    return float(min(MAX_BACKOFF_S, FIRST_BACKOFF_S * 2.0 ** min(failures - 1, 16)))
