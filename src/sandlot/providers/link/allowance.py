"""How much of something an agent may do: so much at once, and so much a second after that."""

from __future__ import annotations


class Allowance:
    """A token bucket that may be overdrawn, so that the caller decides what that means."""

    __slots__ = ("_at", "_burst", "_left", "_per_s")

    def __init__(self, *, per_s: float, burst: float, now: float) -> None:
        self._per_s = per_s
        self._burst = burst
        self._left = burst
        self._at = now

    def take(self, amount: float, now: float) -> float:
        """Takes it all the same, and returns for how many seconds the allowance is now overdrawn."""
        self._left = min(self._burst, self._left + (now - self._at) * self._per_s) - amount
        self._at = now
        return -self._left / self._per_s if self._left < 0 else 0.0
