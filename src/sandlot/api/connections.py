"""How many connections a server holds, from one address and in all.

When there are too many, the one that has waited longest for a next request makes room: whoever only keeps
connections open keeps nobody out. Descriptors are kept back for work: sandboxes, the engine, the disk.
"""

from __future__ import annotations

import resource
from collections import Counter
from dataclasses import dataclass
from typing import Final, Protocol

# The part of this process's descriptors that clients may take.
CLIENTS_PART: Final = 0.5


@dataclass(frozen=True, slots=True)
class ConnectionBounds:
    total: int = 2000
    per_address: int = 1000

    def within_descriptors(self) -> ConnectionBounds:
        """As many as this process may open, less what is kept back."""
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft == resource.RLIM_INFINITY:
            return self
        most = max(1, int(soft * CLIENTS_PART))
        return ConnectionBounds(min(self.total, most), min(self.per_address, most))


class Guest(Protocol):
    """One connection."""

    @property
    def address(self) -> str: ...

    @property
    def idle_since(self) -> float | None:
        """None while a request is under way."""
        ...

    def leave(self) -> None:
        """It is closed, and counts no more."""
        ...


class Connections:
    def __init__(self, bounds: ConnectionBounds) -> None:
        self._bounds = bounds
        self._open: dict[Guest, None] = {}  # in the order of their arrival
        self._by_address: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._open)

    def admits(self, guest: Guest) -> bool:
        """Whether there is room for it; then it counts until ``left``."""
        address = guest.address
        if self._by_address[address] >= self._bounds.per_address and not self._make_room(address):
            return False
        if len(self._open) >= self._bounds.total and not self._make_room(None):
            return False
        self._open[guest] = None
        self._by_address[address] += 1
        return True

    def left(self, guest: Guest) -> None:
        if guest not in self._open:
            return
        del self._open[guest]
        self._by_address[guest.address] -= 1
        if not self._by_address[guest.address]:
            del self._by_address[guest.address]

    def _make_room(self, address: str | None) -> bool:
        """By the one that has been idle longest, of this address or of any."""
        idle = [
            (since, number, guest)
            for number, guest in enumerate(self._open)
            if address in (None, guest.address) and (since := guest.idle_since) is not None
        ]
        if not idle:
            return False
        _, _, longest = min(idle)
        self.left(longest)
        longest.leave()
        return True
