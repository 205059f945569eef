"""Limits how often an agent may do something: a burst at once, then a rate per second."""

from __future__ import annotations


class Allowance:
    """A token bucket that can be overdrawn; the caller decides what to do about it."""

    __slots__ = ("_available", "_burst", "_per_s", "_updated_at")

    def __init__(self, *, per_s: float, burst: float, now: float) -> None:
        self._per_s = per_s
        self._burst = burst
        self._available = burst
        self._updated_at = now

    def take(self, amount: float, now: float) -> float:
        """Always takes ``amount``. Returns for how many seconds the allowance is now overdrawn."""
        refilled = self._available + (now - self._updated_at) * self._per_s
        self._available = min(self._burst, refilled) - amount
        self._updated_at = now
        return -self._available / self._per_s if self._available < 0 else 0.0
