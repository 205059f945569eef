"""The endpoint that ``sandlot serve`` has at /mcp."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import AbstractAsyncContextManager
from typing import Any

from mcp.server.transport_security import TransportSecuritySettings

from sandlot.client.async_client import AsyncClient
from sandlot.domain.service import Catalogue
from sandlot.integrations.mcp.server import build_mcp
from sandlot.integrations.mcp.whose import ByHeader

# The types of ASGI, which are nobody's in particular.
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class McpEndpoint:
    """An ASGI application; it answers while ``running()`` is entered.

    Stateless: each request stands alone, so any of several servers can answer it. An answer is one JSON
    document, or a stream of events where there is progress to tell: plain JSON would have no room for it, and
    would neither keep a connection alive during a long command nor notice that the client has left.
    """

    def __init__(self, client: AsyncClient, catalogue: Catalogue) -> None:
        self._server = build_mcp(ByHeader(client), catalogue)
        self._server.streamable_http_app(
            stateless_http=True,
            # Host, Origin and key are the edge's to check, for every path alike.
            transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),
        )

    def running(self) -> AbstractAsyncContextManager[None]:
        return self._server.session_manager.run()

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        await self._server.session_manager.handle_request(scope, receive, send)
