"""Limits on how often something happens, by the generic cell rate algorithm (GCRA). Pure.

One number per rate is enough: its *due time*, the time until which the past events have used it up. Each
event moves it on by the time between two events. An event is refused if it would come more than the burst
ahead. Unlike a counter per second, this allows no double rate at the border of two seconds.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

# Rates of which a process remembers the due time. Those in the past are dropped beyond this number.
MAX_REMEMBERED: Final = 10_000


@dataclass(frozen=True, slots=True)
class Rate:
    """``per_s`` events per second on average. Those of one second, and at least one, may come at once."""

    name: str
    per_s: float

    @property
    def interval_s(self) -> float:
        return 1 / self.per_s

    @property
    def burst(self) -> int:
        return max(1, math.floor(self.per_s))


@dataclass(frozen=True, slots=True)
class Taken:
    """What is left of a rate after an event, or why the event is refused.

    wait_s: seconds until one more event is allowed; more than 0 if this one is refused.
    left: how many more events are allowed now.
    full_in_s: seconds until the whole burst is allowed again.
    """

    wait_s: float
    left: int
    full_in_s: float


class Rates(Protocol):
    async def take(self, rates: Sequence[Rate]) -> Sequence[Taken]:
        """Count one event for all rates, or for none of them if one refuses it (``Taken.wait_s``)."""
        ...


def take(rate: Rate, due: float, now: float) -> tuple[float, Taken]:
    """One event at ``now``, with the due time after it. A refused event leaves the due time as it was."""
    interval, burst_s = rate.interval_s, rate.burst * rate.interval_s
    # A due time further ahead than the burst comes from a clock that was set back, or a higher limit before.
    due = min(max(due, now), now + burst_s)
    after = due + interval
    wait_s = after - burst_s - now
    # The small term makes up for the rounding errors of added fractions.
    if wait_s > interval * 1e-6:
        return due, Taken(wait_s, 0, due - now)
    left = math.floor((now + burst_s - after) / interval + 1e-6)
    return after, Taken(0.0, left, after - now)


class RatesInMemory:
    """``Rates`` of one process."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._due: dict[str, float] = {}
        self._prune_at = MAX_REMEMBERED

    async def take(self, rates: Sequence[Rate]) -> Sequence[Taken]:
        return self.take_now(rates)

    def take_now(self, rates: Sequence[Rate]) -> Sequence[Taken]:
        now = self._clock()
        if len(self._due) > self._prune_at:
            self._due = {name: due for name, due in self._due.items() if due > now}
            self._prune_at = max(MAX_REMEMBERED, 2 * len(self._due))
        after = {rate.name: take(rate, self._due.get(rate.name, now), now) for rate in rates}
        if not any(taken.wait_s for _, taken in after.values()):
            self._due.update({name: due for name, (due, _) in after.items()})
        return [taken for _, taken in after.values()]
