"""Bytes that may be held at once, by all who hold some.

A server has one budget, and each request an account with it (``holding``). Whatever is about to hold bytes
on behalf of a client takes them first (``hold``); all of them go back when the request is over. Where there
is no account, as in a program that uses a worker directly, nothing is counted.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from sys import getsizeof
from typing import Final

from sandlot.domain.errors import Busy

LOOK_EVERY_S: Final = 0.05
# What each account may hold beside the budget: who asks for little is served while others wait for room.
FREE_BYTES: Final = 64 * 1024


class ByteBudget:
    """What is larger than all of it gets all of it, and so its turn as well."""

    def __init__(self, total: int) -> None:
        self.total = total
        self._held = 0

    def take(self, size: int) -> int:
        """What is to be given back."""
        size = min(size, self.total)
        if self._held + size > self.total:
            raise Busy(
                "too much is on its way to clients at this moment; ask again, and for a command's result, "
                "which is kept, ask for it by its exec id",
                retry_after_s=1.0,
                may_have_executed=True,
                details={"reason": "large_results"},
            )
        self._held += size
        return size

    def give_back(self, size: int) -> None:
        self._held -= size

    @asynccontextmanager
    async def held(self, size: int, *, within_s: float) -> AsyncIterator[None]:
        """Waits for a while if there is no room."""
        taken = await self._taken(size, within_s)
        try:
            yield
        finally:
            self.give_back(taken)

    async def _taken(self, size: int, within_s: float) -> int:
        clock = asyncio.get_running_loop().time
        deadline = clock() + within_s
        while True:
            try:
                return self.take(size)
            except Busy:
                if clock() >= deadline:
                    raise
            await asyncio.sleep(LOOK_EVERY_S)


class Account:
    """What one request holds."""

    def __init__(self, budget: ByteBudget) -> None:
        self._budget = budget
        self._held = 0
        self._taken = 0
        self._reserved = 0  # of what is held: room that nothing is in yet
        self._closed = False

    @property
    def held(self) -> int:
        return self._held

    def add(self, size: int) -> None:
        """Into what is reserved first. ``Busy`` if there is no room; then nothing has changed."""
        from_reserved = min(size, self._reserved)
        self.at_least(self._held + size - from_reserved)
        self._reserved -= from_reserved

    def at_least(self, size: int) -> None:
        """So much in all, with what it has already."""
        if self._closed or size <= self._held:
            return
        more = min(size - FREE_BYTES, self._budget.total) - self._taken
        if more > 0:
            self._taken += self._budget.take(more)
        self._held = size

    async def reserve(self, size: int, *, within_s: float) -> None:
        """Room for what is added from now on. Nothing is done yet, so it waits a while if there is none."""
        clock = asyncio.get_running_loop().time
        deadline = clock() + within_s
        while True:
            try:
                self.at_least(self._held + size)
                self._reserved += size
                return
            except Busy as error:
                if clock() >= deadline:
                    error.may_have_executed = False
                    raise
            await asyncio.sleep(LOOK_EVERY_S)

    def settle(self) -> None:
        """No more will be added to what is reserved."""
        reserved, self._reserved = self._reserved, 0
        self.remove(reserved)

    def remove(self, size: int) -> None:
        """So much is no longer held."""
        self._held -= min(size, self._held)
        self._give_back(self._taken - max(0, self._held - FREE_BYTES))

    def close(self) -> None:
        """What goes on after the request, in tasks that it began, is not counted any more."""
        self._closed = True
        self._give_back(self._taken)

    def _give_back(self, size: int) -> None:
        if size > 0:
            self._taken -= size
            self._budget.give_back(size)


holding: ContextVar[Account | None] = ContextVar("holding", default=None)


def hold_at_least(size: int) -> None:
    """So many bytes are held for whoever is being served, some of them maybe on the account already."""
    account = holding.get()
    if account is not None:
        account.at_least(size)


def hold(size: int) -> None:
    """More bytes are about to be held for whoever is being served."""
    account = holding.get()
    if account is not None:
        account.add(size)


def let_go(size: int) -> None:
    """What was held is not held any more, although the request goes on."""
    account = holding.get()
    if account is not None:
        account.remove(size)


def memory_of(values: Iterable[object]) -> int:
    """What the entries of a list take, named tuples or dataclasses with slots: a text with one emoji in it
    takes four bytes for each of its characters, so their number tells little.
    """
    size = 0
    for value in values:
        fields = value if isinstance(value, tuple) else [getattr(value, name) for name in _names(value)]
        size += _PLACES_BYTES + getsizeof(value) + sum(map(getsizeof, fields))
    return size


# Of an entry in the list in which it is gathered, and in the tuple that this becomes.
_PLACES_BYTES: Final = 16


def _names(value: object) -> Iterable[str]:
    names: Iterable[str] = type(value).__slots__  # type: ignore[attr-defined]
    return names
