"""Interrupts of a cell that has not begun: it waits for its kernel to start, or to adopt variables."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, cast

import pytest

from sandlot.worker.contexts.bridge.context import OK, RAISED, Cell, Context
from sandlot.worker.contexts.bridge.kernel import Kernel


class SlowKernel:
    """It stops at one step until it is told to go on, and notes what it runs."""

    def __init__(self, slow: str) -> None:
        self._slow = slow
        self.reached, self.go_on = asyncio.Event(), asyncio.Event()
        self.ran: list[str] = []

    async def _step(self, name: str) -> None:
        if name == self._slow:
            self.reached.set()
            await self.go_on.wait()

    async def start(self, environ: Mapping[str, str], cwd: str) -> None:
        await self._step("start")

    async def adopt(self, environ: Mapping[str, str], cwd: str) -> None:
        await self._step("adopt")

    async def run_silently(self, code: str) -> None:
        await self._step("variables")

    async def run(self, code: str, sink: Any) -> dict[str, Any]:
        self.ran.append(code)
        return {"status": "ok"}

    async def lives(self) -> bool:
        return True


@pytest.mark.parametrize("slow", ["start", "adopt", "variables"])
@pytest.mark.parametrize("gone", [False, True], ids=["interrupted", "abandoned"])
async def test_a_cell_that_has_not_begun_never_runs(slow: str, gone: bool) -> None:
    kernel = SlowKernel(slow)
    context = Context("python", "python", "/", lambda _: cast(Kernel, kernel))
    events: list[Mapping[str, Any]] = []

    async def emit(event: Mapping[str, Any]) -> None:
        events.append(event)

    cell = Cell("never", emit, {}, {"NAME": "value"})
    over = asyncio.ensure_future(context.run(cell))
    await kernel.reached.wait()
    leaving = asyncio.ensure_future(context.abandon(cell, over) if gone else context.interrupt())
    await asyncio.sleep(0)
    kernel.go_on.set()
    assert await over == RAISED
    await leaving
    assert [event["name"] for event in events] == ["KeyboardInterrupt"]
    assert await context.run(Cell("next", emit, {})) == OK
    assert kernel.ran == ["next"]
