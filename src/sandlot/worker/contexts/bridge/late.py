"""What a kernel sends too late: Deno says that a cell has ended before all that the cell wrote has gone out.

So a few lines of the bridge's own run after each such cell. They write a mark, on each way that output takes.
When the marks have come, so has everything before them.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

# Kernels that do so, by language.
LANGUAGES = {"javascript", "typescript"}
# For the marks. A program may have replaced what writes them.
WITHIN_S = 0.5

# Values and displays go out one way, and text another. Displays are awaited, so text is last.
_CODE = (
    'await globalThis.Deno.jupyter.broadcast("display_data", '
    '{{data: {{"text/plain": {mark}}}, metadata: {{}}, transient: {{}}}}); '
    "globalThis.console.log({mark});"
)


class Fence:
    """``sink`` gets what is the cell's own: late messages may bear the name of the lines that follow it."""

    def __init__(self, sink: Callable[[str, Mapping[str, Any]], Awaitable[None]]) -> None:
        self._sink = sink
        self._mark = secrets.token_hex(16)
        self.code = _CODE.format(mark=json.dumps(self._mark))
        self.reached = asyncio.Event()

    async def take(self, kind: str, content: Mapping[str, Any]) -> None:
        if kind == "stream":
            text = str(content.get("text", ""))
            if self._mark in text:
                text = text.replace(self._mark + "\n", "")
                self.reached.set()
            if text:
                await self._sink(kind, {**content, "text": text})
        elif kind == "execute_result" or (kind == "display_data" and not self._is_mark(content)):
            await self._sink(kind, content)

    def _is_mark(self, content: Mapping[str, Any]) -> bool:
        data = content.get("data")
        return isinstance(data, dict) and data.get("text/plain") == self._mark
