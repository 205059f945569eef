"""A budget of bytes that a server may hold in memory at once for all its clients.

A server has one budget, and each request has an account with it (``current_account``). Code that is
about to hold bytes on behalf of a client charges them to the account first (``hold``). The account
returns all of them when the request is over. Without an account, as in a program that uses a worker
directly, nothing is counted.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from sys import getsizeof
from typing import Final

from sandlot.domain.errors import Busy

POLL_INTERVAL_S: Final = 0.05
# Each account may hold this much outside the budget, so that small requests are served while large
# ones wait for room.
FREE_BYTES: Final = 64 * 1024


class ByteBudget:
    """A number of bytes that accounts acquire and release.

    A request for more than the whole budget gets the whole budget, so that it is served in its
    turn.
    """

    def __init__(self, total: int) -> None:
        self.total = total
        self._held = 0

    def acquire(self, size: int) -> int:
        """Take ``size`` bytes; return how many to release later. ``Busy`` if there is no room."""
        size = min(size, self.total)
        if self._held + size > self.total:
            raise Busy(
                "The server is sending too much data to clients right now. Retry; a command's result "
                "is kept and can be fetched by its exec id.",
                retry_after_s=1.0,
                may_have_executed=True,
                details={"reason": "large_results"},
            )
        self._held += size
        return size

    def release(self, size: int) -> None:
        self._held -= size

    @asynccontextmanager
    async def acquired(self, size: int, *, within_s: float) -> AsyncIterator[None]:
        """Hold ``size`` bytes inside the context; wait up to ``within_s`` seconds for room."""
        acquired = await self._acquire_within(size, within_s)
        try:
            yield
        finally:
            self.release(acquired)

    async def _acquire_within(self, size: int, within_s: float) -> int:
        clock = asyncio.get_running_loop().time
        deadline = clock() + within_s
        while True:
            try:
                return self.acquire(size)
            except Busy:
                if clock() >= deadline:
                    raise
            await asyncio.sleep(POLL_INTERVAL_S)


class Account:
    """The bytes that one request holds."""

    def __init__(self, budget: ByteBudget) -> None:
        self._budget = budget
        self._held = 0
        self._acquired = 0  # from the budget: what is held, less ``FREE_BYTES``
        self._reserved = 0  # the part of ``_held`` that is reserved and still empty
        self._closed = False

    @property
    def held(self) -> int:
        return self._held

    def hold(self, size: int) -> None:
        """Hold ``size`` more bytes, reserved room first.

        ``Busy`` if there is no room, with no change.
        """
        from_reserved = min(size, self._reserved)
        self.hold_at_least(self._held + size - from_reserved)
        self._reserved -= from_reserved

    def hold_at_least(self, size: int) -> None:
        """Hold ``size`` bytes in total, including those that the account holds already."""
        if self._closed or size <= self._held:
            return
        more = min(size - FREE_BYTES, self._budget.total) - self._acquired
        if more > 0:
            self._acquired += self._budget.acquire(more)
        self._held = size

    async def reserve(self, size: int, *, within_s: float) -> None:
        """Reserve room for bytes that the request will hold; wait up to ``within_s`` seconds for
        it.

        Nothing has been executed yet, so the ``Busy`` that this raises says so.
        """
        clock = asyncio.get_running_loop().time
        deadline = clock() + within_s
        while True:
            try:
                self.hold_at_least(self._held + size)
                self._reserved += size
                return
            except Busy as error:
                if clock() >= deadline:
                    error.may_have_executed = False
                    raise
            await asyncio.sleep(POLL_INTERVAL_S)

    def release_reserved(self) -> None:
        """Release the reserved room that is still empty."""
        reserved, self._reserved = self._reserved, 0
        self.release(reserved)

    def release(self, size: int) -> None:
        """Stop holding ``size`` bytes."""
        self._held -= min(size, self._held)
        self._return_to_budget(self._acquired - max(0, self._held - FREE_BYTES))

    def close(self) -> None:
        """Return everything. Tasks that outlive the request are no longer counted."""
        self._closed = True
        self._return_to_budget(self._acquired)

    def _return_to_budget(self, size: int) -> None:
        if size > 0:
            self._acquired -= size
            self._budget.release(size)


current_account: ContextVar[Account | None] = ContextVar("current_account", default=None)


def hold_at_least(size: int) -> None:
    """Make the current request hold ``size`` bytes in total; its account may hold some of them
    already.
    """
    account = current_account.get()
    if account is not None:
        account.hold_at_least(size)


def hold(size: int) -> None:
    """Make the current request hold ``size`` more bytes. Call this before you hold them."""
    account = current_account.get()
    if account is not None:
        account.hold(size)


def release(size: int) -> None:
    """Release ``size`` bytes of the current request before it is over."""
    account = current_account.get()
    if account is not None:
        account.release(size)


def memory_of(values: Iterable[object]) -> int:
    """The memory in bytes of a list's entries, which are named tuples or dataclasses with slots.

    The number of characters would not do: one emoji in a string makes every character take four
    bytes.
    """
    size = 0
    for value in values:
        fields = value if isinstance(value, tuple) else [getattr(value, name) for name in _slots(value)]
        size += _POINTERS_BYTES + getsizeof(value) + sum(map(getsizeof, fields))
    return size


# An entry's pointers: one in the list that collects it, one in the tuple that the list becomes.
_POINTERS_BYTES: Final = 16


def _slots(value: object) -> Iterable[str]:
    names: Iterable[str] = type(value).__slots__  # type: ignore[attr-defined]
    return names
