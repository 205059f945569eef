"""uvicorn's HTTP protocol, with bounds on what comes before a request can be judged.

A request whose head never ends, in time or in bytes, reaches no application, so no application can refuse it;
httptools itself has no bound on either. uvicorn's other parser has one for size, and is several times slower.
"""

from __future__ import annotations

import asyncio
from typing import Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

# Seconds from a connection, or from the first byte of a later request, to the end of the request's head.
HEAD_WITHIN_S: Final = 15.0
MAX_HEAD_BYTES: Final = 64 * 1024


class BoundedHttpProtocol(HttpToolsProtocol):
    _head_timer: asyncio.TimerHandle | None = None
    _head_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._head_begins()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_ends()
        super().connection_lost(exc)

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
