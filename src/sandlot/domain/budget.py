"""Bytes that may be held at once, by all who hold some."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from sandlot.domain.errors import Busy

LOOK_EVERY_S: Final = 0.05


class ByteBudget:
    """What is larger than all of it gets all of it, and so its turn as well."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._held = 0

    def take(self, size: int) -> int:
        """What is to be given back."""
        size = min(size, self._total)
        if self._held + size > self._total:
            raise Busy(
                "too many large results are on their way at this moment; this one is kept: ask for it by its "
                "exec id",
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
