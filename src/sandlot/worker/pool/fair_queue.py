"""A queue of requests for sandboxes: tenants take turns, and each tenant is served in order.

`asyncio.Queue` would not do: this needs one queue per tenant, waiters that can give up, and no task
of its own.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class FairQueue(Generic[T]):
    """A queue of futures that wait for a T.

    It skips futures that are done: served, cancelled, timed out.
    """

    def __init__(self) -> None:
        # Tenants in the order of their turns. A dictionary keeps that order and finds a tenant's
        # queue.
        self._queues: dict[str, deque[asyncio.Future[T]]] = {}

    def __len__(self) -> int:
        return sum(not waiter.done() for queue in self._queues.values() for waiter in queue)

    def join(self, tenant: str) -> asyncio.Future[T]:
        waiter: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._queues.setdefault(tenant, deque()).append(waiter)
        return waiter

    def leave(self, tenant: str, waiter: asyncio.Future[T]) -> None:
        queue = self._queues.get(tenant)
        if queue is not None and waiter in queue:
            queue.remove(waiter)
            if not queue:
                del self._queues[tenant]

    def serve(self, item: T) -> bool:
        """Give the item to the next waiter; False if there is none."""
        waiter = self._next()
        if waiter is None:
            return False
        waiter.set_result(item)
        return True

    def fail(self, error: Exception) -> None:
        """Fail all waiters with the same error."""
        while (waiter := self._next()) is not None:
            waiter.set_exception(error)

    def _next(self) -> asyncio.Future[T] | None:
        while self._queues:
            tenant = next(iter(self._queues))
            queue = self._queues.pop(tenant)
            while queue:
                waiter = queue.popleft()
                if not waiter.done():
                    if queue:
                        self._queues[tenant] = queue  # now last in turn
                    return waiter
        return None
