"""Sends a running command's output as progress notifications, if the client asked for them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any, Final

from mcp.server.mcpserver import Context

from sandlot.domain.text.terminal_codes import strip_terminal_codes
from sandlot.integrations.toolbox.commands import OnOutput

INTERVAL_S: Final = 0.2  # between two notifications; output in between is sent together
MAX_CHARACTERS: Final = 4000  # per notification: the newest, since the result has the rest


@contextlib.asynccontextmanager
async def output_progress(ctx: Context[Any, Any]) -> AsyncIterator[OnOutput | None]:
    """Yield a callback for each piece of output, or None if the client wants no progress."""
    meta = ctx.request_context.meta
    if meta is None or meta.get("progress_token") is None:
        yield None
        return
    reporter = _ProgressReporter(ctx)
    reporting = asyncio.create_task(reporter.report(), name="live output")
    try:
        yield reporter.add
    finally:
        reporting.cancel()
        await asyncio.gather(reporting, return_exceptions=True)
    await reporter.send(flush=True)


class _ProgressReporter:
    def __init__(self, ctx: Context[Any, Any]) -> None:
        self._ctx = ctx
        self._pending = ""
        self._written = 0
        self._has_output = asyncio.Event()

    def add(self, text: str) -> None:
        self._written += len(text)
        self._pending = (self._pending + text)[-MAX_CHARACTERS:]
        self._has_output.set()

    async def report(self) -> None:
        while True:
            await self._has_output.wait()
            self._has_output.clear()
            await self.send()
            await asyncio.sleep(INTERVAL_S)

    async def send(self, *, flush: bool = False) -> None:
        """Send complete lines. An incomplete line waits, unless it fills a notification."""
        whole = flush or len(self._pending) == MAX_CHARACTERS
        end = len(self._pending) if whole else self._pending.rfind("\n") + 1
        lines, self._pending = self._pending[:end], self._pending[end:]
        if lines.strip():
            await self._ctx.report_progress(self._written, None, strip_terminal_codes(lines).rstrip("\n"))
