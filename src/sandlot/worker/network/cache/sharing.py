"""Work that several requests wait for, and that nobody does for no one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Shared(Generic[T]):
    """``abandon``: called if all who waited have left before there is a result. Otherwise a program could ask
    for one thing after the other without waiting, and others would queue behind what nobody wants.
    """

    def __init__(self, result: asyncio.Future[T], abandon: Callable[[], object]) -> None:
        self.result = result
        self._abandon = abandon
        self._waiting = 0

    async def wait(self) -> T:
        """One that gives up leaves the others with the result."""
        self._waiting += 1
        try:
            return await asyncio.shield(self.result)
        finally:
            self._waiting -= 1
            if not self._waiting and not self.result.done():
                self._abandon()
