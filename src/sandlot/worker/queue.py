"""Who waits for a sandbox, and who is next: tenants take turns, and within a tenant the first comes first.

No library: `asyncio.Queue` knows one line, and what is needed is one line per tenant, entries that can give
up, and no task of its own.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class FairQueue(Generic[T]):
    """Futures that wait for a T. One that is done (served, cancelled, timed out) is passed over."""

    def __init__(self) -> None:
        # Tenants in the order of their turns; a dictionary keeps it, and a line is found by its tenant.
        self._lines: dict[str, deque[asyncio.Future[T]]] = {}

    def __len__(self) -> int:
        return sum(not waiter.done() for line in self._lines.values() for waiter in line)

    def join(self, tenant: str) -> asyncio.Future[T]:
        waiter: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._lines.setdefault(tenant, deque()).append(waiter)
        return waiter

    def leave(self, tenant: str, waiter: asyncio.Future[T]) -> None:
        line = self._lines.get(tenant)
        if line is not None and waiter in line:
            line.remove(waiter)
            if not line:
                del self._lines[tenant]

    def serve(self, thing: T) -> bool:
        """Hands it to whoever is next; False if nobody waits."""
        waiter = self._next()
        if waiter is None:
            return False
        waiter.set_result(thing)
        return True

    def fail(self, error: Exception) -> None:
        """Everybody who waits is told the same."""
        while (waiter := self._next()) is not None:
            waiter.set_exception(error)

    def _next(self) -> asyncio.Future[T] | None:
        while self._lines:
            tenant = next(iter(self._lines))
            line = self._lines.pop(tenant)
            while line:
                waiter = line.popleft()
                if not waiter.done():
                    if line:
                        self._lines[tenant] = line  # behind the others
                    return waiter
        return None
