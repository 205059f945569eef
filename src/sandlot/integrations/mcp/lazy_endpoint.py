"""Creates the endpoint of http.py at its first request.

Importing the MCP library takes half a second. A server without MCP clients never pays for it. Other
servers pay once, and keep serving everything else meanwhile.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
from collections.abc import Callable
from typing import TYPE_CHECKING

from sandlot.client.async_client import AsyncClient
from sandlot.domain.callers.principal import Principal
from sandlot.domain.service import Catalogue

if TYPE_CHECKING:
    from sandlot.integrations.mcp.http import McpEndpoint, Message, Receive, Send


def mcp_is_installed() -> bool:
    """Whether version 2 or later of the library is installed: ``mcp_types`` came with 2."""
    return all(importlib.util.find_spec(name) is not None for name in ("mcp", "mcp_types"))


class LazyMcpEndpoint:
    """An ASGI application. ``aclose`` abandons the calls in progress."""

    def __init__(self, client_of: Callable[[Principal], AsyncClient], catalogue: Catalogue) -> None:
        """``client_of`` gives the client that acts for a caller."""
        self._client_of = client_of
        self._catalogue = catalogue
        self._start_lock = asyncio.Lock()
        self._closing = asyncio.Event()
        self._endpoint: McpEndpoint | None = None
        self._running: asyncio.Task[None] | None = None

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        async with self._start_lock:
            if self._endpoint is None:
                self._endpoint = await self._start()
        await self._endpoint(scope, receive, send)

    async def aclose(self) -> None:
        self._closing.set()
        if self._running is not None:
            await asyncio.wait({self._running})

    async def _start(self) -> McpEndpoint:
        endpoint = await asyncio.to_thread(self._build)
        started = asyncio.Event()
        self._running = asyncio.create_task(self._run(endpoint, started), name="mcp endpoint")
        waiting = asyncio.create_task(started.wait())
        await asyncio.wait({self._running, waiting}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if self._running.done():
            self._running.result()  # raises why it could not start; the next request tries again
        return endpoint

    def _build(self) -> McpEndpoint:
        http = importlib.import_module("sandlot.integrations.mcp.http")
        endpoint: McpEndpoint = http.McpEndpoint(self._client_of, self._catalogue)
        return endpoint

    async def _run(self, endpoint: McpEndpoint, started: asyncio.Event) -> None:
        # In a separate task: the context has to be entered and exited in the same task.
        async with endpoint.running():
            started.set()
            await self._closing.wait()
