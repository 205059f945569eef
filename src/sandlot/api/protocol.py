"""uvicorn's protocols, with bounds on what comes before a request can be judged: its head, and how many there
are that may send one.

A request whose head never ends, in time or in bytes, reaches no application, so no application can refuse it;
httptools itself has no bound on either. uvicorn's other parser has one for size, and is several times slower.
"""

from __future__ import annotations

import asyncio
from typing import Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from sandlot.api.connections import ConnectionBounds, Connections

# Seconds from a connection, or from the first byte of a later request, to the end of the request's head.
HEAD_WITHIN_S: Final = 15.0
MAX_HEAD_BYTES: Final = 64 * 1024


class BoundedHttpProtocol(HttpToolsProtocol):
    """``connections_of_server``: None where they are not counted."""

    connections_of_server: Connections | None = None
    address = ""
    idle_since: float | None = None
    _head_timer: asyncio.TimerHandle | None = None
    _head_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.address = self.client[0] if self.client else ""
        self.idle_since = self.loop.time()
        self._head_begins()
        if self.connections_of_server is not None and not self.connections_of_server.admits(self):
            self._refuse(b"503 Service Unavailable")

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_ends()
        self.gone()
        super().connection_lost(exc)

    def gone(self) -> None:
        if self.connections_of_server is not None:
            self.connections_of_server.left(self)

    def leave(self) -> None:
        """Idle, and in the way of others."""
        self._head_ends()
        self.transport.close()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.cycle.response_complete:  # no other one waits behind it
            self.idle_since = self.loop.time()

    def handle_websocket_upgrade(self) -> None:
        super().handle_websocket_upgrade()
        protocol = self.transport.get_protocol()
        if isinstance(protocol, BoundedWebSocketProtocol):
            protocol.came_as = self

    def data_received(self, data: bytes) -> None:
        self._head_bytes += len(data)
        super().data_received(data)
        if self._head_bytes > MAX_HEAD_BYTES:  # of a head, or of the trailers after a chunked body
            self._refuse(b"431 Request Header Fields Too Large")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if self._head_timer is None:
            self._head_begins()

    def on_headers_complete(self) -> None:
        self._head_ends()
        self.idle_since = None
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._head_bytes = 0
        super().on_body(body)

    def _head_begins(self) -> None:
        self._head_bytes = 0
        self._head_timer = self.loop.call_later(HEAD_WITHIN_S, self._refuse, b"408 Request Timeout")

    def _head_ends(self) -> None:
        self._head_bytes = 0
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _refuse(self, status: bytes) -> None:
        self._head_ends()
        if not self.transport.is_closing():
            self.transport.write(
                b"HTTP/1.1 " + status + b"\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
            )
            self.transport.close()


class BoundedWebSocketProtocol(WebSocketsSansIOProtocol):
    """Counts as the connection that it was before, to its end."""

    came_as: BoundedHttpProtocol | None = None

    def connection_lost(self, exc: Exception | None) -> None:
        if self.came_as is not None:
            self.came_as.gone()
        super().connection_lost(exc)


def http_protocol(bounds: ConnectionBounds) -> type[BoundedHttpProtocol]:
    """For one server, whose connections are counted together."""
    return type("CountedHttpProtocol", (BoundedHttpProtocol,), {"connections_of_server": Connections(bounds)})
