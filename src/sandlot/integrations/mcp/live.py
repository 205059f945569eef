"""A running command's output as progress notifications, for a client that asked for them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any, Final

from mcp.server.mcpserver import Context

from sandlot.integrations.model_text import plain
from sandlot.integrations.toolbox.commands import OnOutput

EVERY_S: Final = 0.2  # between two notifications; what is written meanwhile goes together
SHOWN: Final = 4000  # characters of one notification: the newest, since the result has the rest


@contextlib.asynccontextmanager
async def live_output(ctx: Context[Any, Any]) -> AsyncIterator[OnOutput | None]:
    """What is to be called with each piece of output; None if nobody wants to see it."""
    meta = ctx.request_context.meta
    if meta is None or meta.get("progress_token") is None:
        yield None
        return
    live = _Live(ctx)
    reporting = asyncio.create_task(live.report(), name="live output")
    try:
        yield live.add
    finally:
        reporting.cancel()
        await asyncio.gather(reporting, return_exceptions=True)
    await live.send(all_of_it=True)


class _Live:
    def __init__(self, ctx: Context[Any, Any]) -> None:
        self._ctx = ctx
        self._pending = ""
        self._written = 0
        self._news = asyncio.Event()

    def add(self, text: str) -> None:
        self._written += len(text)
        self._pending = (self._pending + text)[-SHOWN:]
        self._news.set()

    async def report(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            await self.send()
            await asyncio.sleep(EVERY_S)

    async def send(self, *, all_of_it: bool = False) -> None:
        """Whole lines; one that is not yet complete is waited for, unless it is longer than is shown."""
        whole = all_of_it or len(self._pending) == SHOWN
        end = len(self._pending) if whole else self._pending.rfind("\n") + 1
        lines, self._pending = self._pending[:end], self._pending[end:]
        if lines.strip():
            await self._ctx.report_progress(self._written, None, plain(lines).rstrip("\n"))
