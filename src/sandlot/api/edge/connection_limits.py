"""Limits on a server's open connections, per address and in total.

At the limit, the connection that has been idle longest is closed to make room, so a client that
only keeps connections open cannot keep others out. Part of the file descriptors is reserved for the
server's own work: sandboxes, the engine, the disk.
"""

from __future__ import annotations

import resource
from collections import Counter
from dataclasses import dataclass
from typing import Final, Protocol

from sandlot.domain.capacity import client_limits

# The share of this process's file descriptors that client connections may use.
CLIENT_SHARE: Final = 0.5


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    total: int = client_limits.MAX_CONNECTIONS
    per_address: int = client_limits.MAX_CONNECTIONS_PER_ADDRESS

    def within_descriptors(self) -> ConnectionLimits:
        """These limits, lowered to the descriptors that clients may use in this process."""
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft == resource.RLIM_INFINITY:
            return self
        most = max(1, int(soft * CLIENT_SHARE))
        return ConnectionLimits(min(self.total, most), min(self.per_address, most))


class CountedConnection(Protocol):
    """One client connection."""

    @property
    def address(self) -> str: ...

    @property
    def idle_since(self) -> float | None:
        """When the connection became idle. None while a request is in progress."""
        ...

    def evict(self) -> None:
        """Close the connection, which is no longer counted."""
        ...


class OpenConnections:
    """The open connections of one server, counted per address and in total."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self._limits = limits
        self._open: dict[CountedConnection, None] = {}  # in order of arrival
        self._by_address: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._open)

    def admit(self, connection: CountedConnection) -> bool:
        """Count the connection until ``remove``. Returns False if there is no room for it."""
        address = connection.address
        if self._by_address[address] >= self._limits.per_address and not self._make_room(address):
            return False
        if len(self._open) >= self._limits.total and not self._make_room(None):
            return False
        self._open[connection] = None
        self._by_address[address] += 1
        return True

    def remove(self, connection: CountedConnection) -> None:
        if connection not in self._open:
            return
        del self._open[connection]
        self._by_address[connection.address] -= 1
        if not self._by_address[connection.address]:
            del self._by_address[connection.address]

    def _make_room(self, address: str | None) -> bool:
        """Evict the connection that has been idle longest, of this address or of any."""
        idle = [
            (since, number, connection)
            for number, connection in enumerate(self._open)
            if address in (None, connection.address) and (since := connection.idle_since) is not None
        ]
        if not idle:
            return False
        _, _, longest = min(idle)
        self.remove(longest)
        longest.evict()
        return True
