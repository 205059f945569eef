"""Opens WebSockets to a server, with the same key, trust and errors as other calls."""

from __future__ import annotations

from typing import Final

import httpx
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidStatus, WebSocketException
from websockets.http11 import Response

from sandlot.client.http.transport.connection import Connection
from sandlot.client.http.transport.errors import interrupted, unreachable, wrong_server

HANDSHAKE_S: Final = 5.0  # the shortest time limit for opening a WebSocket
SWITCHING_PROTOCOLS: Final = 101  # the HTTP status of an open WebSocket


class _Handshake(connect):
    """Follows no redirects: the key is for this server only. HTTP calls follow none either."""

    def process_redirect(self, exc: Exception) -> Exception:
        return exc


def _headers(answer: Response) -> httpx.Headers:
    """Convert headers for ``httpx``: unlike those of ``websockets``, they allow repeated names."""
    return httpx.Headers(list(answer.headers.raw_items()))


async def open_socket(
    connection: Connection, path: str, *, max_message_bytes: int, open_s: float = HANDSHAKE_S
) -> ClientConnection:
    """``open_s``: the shortest time limit for the server's answer."""
    url = connection.url
    try:
        socket = await _Handshake(
            "ws" + url.removeprefix("http") + path,
            additional_headers=connection.identity_headers,
            proxy=True if connection.through_proxy else None,
            ssl=connection.tls(),
            open_timeout=max(open_s, connection.connect_timeout_s),
            compression=None,
            max_size=max_message_bytes,
            # A slow reader does not see the answers to our pings, but the connection is alive.
            ping_timeout=None,
            close_timeout=2,
        )
    except InvalidStatus as refusal:
        answer = refusal.response
        raise connection.refusal(answer.status_code, bytes(answer.body or b""), _headers(answer)) from refusal
    except OSError as error:
        raise unreachable(url, str(error) or "no response") from error
    except WebSocketException as error:
        raise interrupted(url, error) from error
    if socket.response is None or not connection.is_expected_worker(_headers(socket.response)):
        socket.transport.abort()
        raise wrong_server(url, connection.worker, SWITCHING_PROTOCOLS)
    return socket
