"""The endpoint of http.py, made by its first request.

The protocol's library takes half a second to import. A server whose clients do not speak MCP never waits for
it, and others wait once, while everything else is served.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
from typing import TYPE_CHECKING

from sandlot.client.async_client import AsyncClient
from sandlot.domain.service import Catalogue

if TYPE_CHECKING:
    from sandlot.integrations.mcp.http import McpEndpoint, Message, Receive, Send


def mcp_is_installed() -> bool:
    """Of the version that we need: before 2 there was no ``mcp_types``."""
    return all(importlib.util.find_spec(name) is not None for name in ("mcp", "mcp_types"))


class McpOnDemand:
    """An ASGI application. ``aclose`` gives up the calls that are under way."""

    def __init__(self, client: AsyncClient, catalogue: Catalogue) -> None:
        self._client = client
        self._catalogue = catalogue
        self._starting = asyncio.Lock()
        self._closing = asyncio.Event()
        self._endpoint: McpEndpoint | None = None
        self._running: asyncio.Task[None] | None = None

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        async with self._starting:
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
            self._running.result()  # says why it could not begin; the next request tries again
        return endpoint

    def _build(self) -> McpEndpoint:
        http = importlib.import_module("sandlot.integrations.mcp.http")
        endpoint: McpEndpoint = http.McpEndpoint(self._client, self._catalogue)
        return endpoint

    async def _run(self, endpoint: McpEndpoint, started: asyncio.Event) -> None:
        # In a task of its own: what is entered there has to be left there.
        async with endpoint.running():
            started.set()
            await self._closing.wait()
