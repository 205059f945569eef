"""uvicorn's protocols, with limits on request heads and on the number of connections.

A request whose head never ends, in time or in bytes, reaches no application, so no application can
refuse it. httptools limits neither. uvicorn's other parser limits the size, but is several times
slower.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from sandlot.api.edge.connection_limits import ConnectionLimits, OpenConnections

# Seconds from connecting, or from the first byte of a later request, to the end of its head.
HEAD_TIMEOUT_S: Final = 15.0
MAX_HEAD_BYTES: Final = 64 * 1024


class BoundedHttpProtocol(HttpToolsProtocol):
    """Limits request heads. Counts connections, unless ``open_connections`` is None."""

    open_connections: OpenConnections | None = None
    address = ""
    idle_since: float | None = None
    _head_timer: asyncio.TimerHandle | None = None
    _head_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.address = self.client[0] if self.client else ""
        self.idle_since = self.loop.time()
        self._start_head_timer()
        if self.open_connections is not None and not self.open_connections.admit(self):
            self._refuse(b"503 Service Unavailable")

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_head_timer()
        self.stop_counting()
        super().connection_lost(exc)

    def stop_counting(self) -> None:
        if self.open_connections is not None:
            self.open_connections.remove(self)

    def evict(self) -> None:
        """Close this idle connection to make room for others."""
        self._stop_head_timer()
        self.transport.close()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.cycle.response_complete:  # no pipelined request is waiting
            self.idle_since = self.loop.time()

    def handle_websocket_upgrade(self) -> None:
        super().handle_websocket_upgrade()
        protocol = self.transport.get_protocol()
        if isinstance(protocol, BoundedWebSocketProtocol):
            protocol.upgraded_from = self

    def data_received(self, data: bytes) -> None:
        self._head_bytes += len(data)
        super().data_received(data)
        if self._head_bytes > MAX_HEAD_BYTES:  # in a head, or in trailers after a chunked body
            self._refuse(b"431 Request Header Fields Too Large")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if self._head_timer is None:
            self._start_head_timer()

    def on_headers_complete(self) -> None:
        self._stop_head_timer()
        self.idle_since = None
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._head_bytes = 0
        super().on_body(body)

    def _start_head_timer(self) -> None:
        self._head_bytes = 0
        self._head_timer = self.loop.call_later(HEAD_TIMEOUT_S, self._refuse, b"408 Request Timeout")

    def _stop_head_timer(self) -> None:
        self._head_bytes = 0
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _refuse(self, status: bytes) -> None:
        self._stop_head_timer()
        if not self.transport.is_closing():
            self.transport.write(
                b"HTTP/1.1 " + status + b"\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
            )
            self.transport.close()


class BoundedWebSocketProtocol(WebSocketsSansIOProtocol):
    """Counts as the HTTP connection that it was upgraded from, until it closes."""

    upgraded_from: BoundedHttpProtocol | None = None

    def connection_lost(self, exc: Exception | None) -> None:
        if self.upgraded_from is not None:
            self.upgraded_from.stop_counting()
        super().connection_lost(exc)

    async def send(self, message: Any) -> None:
        await super().send(message)
        if message["type"] == "websocket.http.response.body" and not message.get("more_body", False):
            self.handshake_complete = True  # refused in order: without this, uvicorn logs an error


def http_protocol(limits: ConnectionLimits) -> type[BoundedHttpProtocol]:
    """The protocol class for one server, which counts all of its connections together."""
    return type("CountedHttpProtocol", (BoundedHttpProtocol,), {"open_connections": OpenConnections(limits)})
