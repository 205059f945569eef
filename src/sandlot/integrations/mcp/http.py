"""The /mcp endpoint of ``sandlot serve``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import AbstractAsyncContextManager
from typing import Any

from mcp.server.transport_security import TransportSecuritySettings

from sandlot.domain.service import Catalogue
from sandlot.integrations.mcp.server import build_mcp
from sandlot.integrations.mcp.thread_binding import ClientOf, HeaderBinding

# The ASGI types. They come from no library, because ASGI is only a convention.
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class McpEndpoint:
    """An ASGI application. It answers requests inside the ``running()`` context.

    It is stateless: any of several servers can answer any request. A response is one JSON document,
    or an event stream if there is progress to report. Plain JSON cannot carry progress, keep the
    connection alive during a long command, or notice that the client has disconnected.
    """

    def __init__(self, client_of: ClientOf, catalogue: Catalogue) -> None:
        self._server = build_mcp(HeaderBinding(client_of), catalogue)
        self._server.streamable_http_app(
            stateless_http=True,
            # The API's edge checks Host, Origin and the key for every path.
            transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),
        )

    def running(self) -> AbstractAsyncContextManager[None]:
        return self._server.session_manager.run()

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        await self._server.session_manager.handle_request(scope, receive, send)
