"""Sends creates from a coordinator to a worker, with aiohttp.

The SDK's httpx takes 2 ms longer, a quarter of a create (``bench.fleet``). All other calls to a worker go
through the SDK.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Final

import aiohttp

from sandlot.client.http.transport.errors import error_of_answer, interrupted, unreachable, unreadable

CONNECT_TIMEOUT_S: Final = 2.0
# Longer than the time for which a worker lets a create wait for a sandbox.
RESPONSE_TIMEOUT_S: Final = 90.0
# Shorter than the time after which a server closes an idle connection.
KEEP_ALIVE_S: Final = 60.0
MAX_RESPONSE_BYTES: Final = 1024 * 1024
# Connections to one worker. Creates beyond this number wait for one of them.
MAX_CONNECTIONS: Final = 256


class Sender:
    """Sends requests to the worker at ``url``, on pooled connections."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._session: aiohttp.ClientSession | None = None

    async def post(
        self, path: str, body: bytes, headers: Mapping[str, str], tls: ssl.SSLContext | None
    ) -> tuple[int, bytes]:
        """Return the status and body of a successful response.

        The request must be idempotent: it may be sent twice, because the worker may close an idle
        connection at the moment of sending.
        """
        sent = False
        while True:
            attempt = SimpleNamespace(reused=False)
            try:
                return await self._post(path, body, headers, tls, attempt)
            except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
                refused = unreachable(self._url, str(error) or "no answer in time")
                # An earlier connection closed without a response, so the worker may have the request.
                refused.may_have_executed = sent
                raise refused from error
            except (aiohttp.InvalidURL, OverflowError, UnicodeError) as error:
                raise unreachable(self._url, str(error)) from error
            except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError) as error:
                # Every failed connection leaves the pool, so this ends with a new one.
                if not attempt.reused:
                    raise interrupted(self._url, str(error) or "closed") from error
                sent = True
            except TimeoutError as error:
                raise interrupted(self._url, "no answer in time") from error
            except aiohttp.ClientPayloadError as error:
                raise interrupted(self._url, error) from error
            except aiohttp.ClientError as error:
                raise unreadable(self._url, error) from error

    async def _post(
        self,
        path: str,
        body: bytes,
        headers: Mapping[str, str],
        tls: ssl.SSLContext | None,
        attempt: SimpleNamespace,
    ) -> tuple[int, bytes]:
        async with self._opened().post(
            self._url + path,
            data=body,
            headers={**headers, "Content-Type": "application/json"},
            ssl=tls or True,
            allow_redirects=False,
            trace_request_ctx=attempt,
        ) as response:
            answer = bytearray()
            async for piece in response.content.iter_any():
                answer += piece
                if len(answer) > MAX_RESPONSE_BYTES:
                    raise unreadable(self._url, f"more than {MAX_RESPONSE_BYTES} bytes")
            if 200 <= response.status < 300:
                return response.status, bytes(answer)
            lower = {name.lower(): value for name, value in response.headers.items()}
            raise error_of_answer(self._url, response.status, bytes(answer), lower)

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            tracing = aiohttp.TraceConfig()
            tracing.on_connection_reuseconn.append(_note_reuse)
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=MAX_CONNECTIONS, keepalive_timeout=KEEP_ALIVE_S),
                timeout=aiohttp.ClientTimeout(total=RESPONSE_TIMEOUT_S, sock_connect=CONNECT_TIMEOUT_S),
                cookie_jar=aiohttp.DummyCookieJar(),
                skip_auto_headers=("Accept", "Accept-Encoding", "User-Agent"),
                auto_decompress=False,
                trace_configs=[tracing],
            )
        return self._session

    async def close(self) -> None:
        """Close all connections. Creates in progress fail, and may have executed."""
        if self._session is not None:
            await self._session.close()
            self._session = None


async def _note_reuse(
    session: aiohttp.ClientSession,
    context: SimpleNamespace,
    parameters: aiohttp.TraceConnectionReuseconnParams,
) -> None:
    context.trace_request_ctx.reused = True
