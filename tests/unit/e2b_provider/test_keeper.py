"""The keeper goes on after errors that nobody expected."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from types import SimpleNamespace
from typing import Any, cast

from sandlot.providers.e2b.keeper import Keeper
from sandlot.testing.eventually import eventually


class Service:
    """The SDK under it fails in a way of its own, at first."""

    account = SimpleNamespace(timeout_s=0.03)

    def __init__(self) -> None:
        self.asked = 0
        self.extended = 0

    async def listed(self) -> Collection[str]:
        self.asked += 1
        if self.asked == 1:
            raise RuntimeError("the client has been closed")
        return ["remote"]

    async def extend(self, remote_id: str) -> None:
        self.extended += 1
        if self.extended == 1:
            raise RuntimeError("the client has been closed")


async def test_an_unknown_error_of_the_sdk_does_not_end_it() -> None:
    service = Service()
    sandbox: Any = SimpleNamespace(id="sbx", remote_id="remote", mark_lost=lambda reason: None)
    keeper = Keeper(cast(Any, service), {"sbx": sandbox}, service.listed, look_every_s=0.01)
    keeping = asyncio.create_task(keeper.run())
    try:
        await eventually(lambda: service.asked > 2 and service.extended > 2, 10, "it goes on")
        assert not keeping.done()
    finally:
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
