"""Sends creates from a coordinator to a worker.

This module has its own connections and parses with httptools, as the server does. aiohttp takes
0.5 ms longer and httpx 2.5 ms, which is as much as a coordinator may add to a create in total. All
other calls to a worker go through the SDK.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, cast

import httptools
import httpx

from sandlot.client.http.transport.problems import error_of_answer, interrupted, unreachable, unreadable
from sandlot.domain.errors import LinkInterrupted, SandlotError

CONNECT_TIMEOUT_S: Final = 2.0
# Longer than the time for which a worker lets a create wait for a sandbox.
RESPONSE_TIMEOUT_S: Final = 90.0
# Shorter than the time after which a server closes an idle connection.
KEEP_ALIVE_S: Final = 60.0
MAX_RESPONSE_BYTES: Final = 1024 * 1024
# Idle connections to keep for later creates.
MAX_IDLE: Final = 32


@dataclass(frozen=True, slots=True)
class Response:
    status: int
    headers: dict[str, str]
    body: bytes


class Sender:
    """Sends requests to the worker at ``url``, on pooled connections."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._idle: list[_WorkerConnection] = []
        self._closed = False

    async def post(
        self, path: str, body: bytes, headers: Mapping[str, str], tls: ssl.SSLContext | None
    ) -> tuple[int, bytes]:
        """Return the status and body of a successful response.

        The request must be idempotent: it may be sent twice, because the worker may close an idle
        connection at the moment of sending.
        """
        sent = False
        while self._idle:
            connection = self._idle.pop()
            if connection.is_usable:
                try:
                    return await self._post(connection, path, body, headers)
                except _ClosedUnanswered:
                    sent = True
                    continue
            connection.close()
        try:
            connection = await _connect(self._url, tls)
        except SandlotError as error:
            # An earlier connection closed without a response, so the worker may have the request.
            error.may_have_executed = sent
            raise
        return await self._post(connection, path, body, headers)

    async def _post(
        self, connection: _WorkerConnection, path: str, body: bytes, headers: Mapping[str, str]
    ) -> tuple[int, bytes]:
        response = await connection.post(path, body, headers)
        while self._idle and not self._idle[0].is_usable:
            self._idle.pop(0).close()
        if connection.is_usable and len(self._idle) < MAX_IDLE and not self._closed:
            self._idle.append(connection)
        else:
            connection.close()
        if 200 <= response.status < 300:
            return response.status, response.body
        raise error_of_answer(self._url, response.status, response.body, response.headers)

    def close(self) -> None:
        self._closed = True
        while self._idle:
            self._idle.pop().close()


class _ClosedUnanswered(LinkInterrupted):
    """The connection closed before any part of a response arrived."""


class _WorkerConnection(asyncio.Protocol):
    """One connection, for one request at a time. The parser calls the ``on_`` methods."""

    def __init__(self, url: str) -> None:
        self._url = url
        parts = httpx.URL(url)
        self._request_prefix = b"POST " + parts.raw_path.rstrip(b"/")
        self._request_suffix = b" HTTP/1.1\r\nHost: " + parts.netloc
        self._transport: asyncio.Transport | None = None
        self._keep_alive = True
        self._used_at = time.monotonic()
        self._response: asyncio.Future[Response] | None = None

    @property
    def is_usable(self) -> bool:
        return self._keep_alive and time.monotonic() - self._used_at < KEEP_ALIVE_S

    async def post(self, path: str, body: bytes, headers: Mapping[str, str]) -> Response:
        assert self._transport is not None
        self._parser = httptools.HttpResponseParser(self)
        self._size, self._open_ended = 0, False
        self._headers, self._pieces = dict[str, str](), list[bytes]()
        self._response = asyncio.get_running_loop().create_future()
        fields = "".join(f"\r\n{name}: {value}" for name, value in headers.items())
        fields += f"\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        self._transport.write(
            self._request_prefix + path.encode() + self._request_suffix + fields.encode() + body
        )
        try:
            async with asyncio.timeout(RESPONSE_TIMEOUT_S):
                return await self._response
        except TimeoutError as error:
            self.close()
            raise interrupted(self._url, "no answer in time") from error
        except BaseException:
            self.close()
            raise
        finally:
            self._response = None
            self._used_at = time.monotonic()

    def close(self) -> None:
        self._keep_alive = False
        if self._transport is not None:
            self._transport.abort()

    def _fail(self, error: Exception) -> None:
        self._keep_alive = False
        if self._response is not None and not self._response.done():
            self._response.set_exception(error)

    # --- callbacks of the transport and the parser --------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self._response is None or self._response.done():  # no request is in progress
            self.close()
            return
        self._size += len(data)
        if self._size > MAX_RESPONSE_BYTES:
            self._fail(unreadable(self._url, f"more than {MAX_RESPONSE_BYTES} bytes"))
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(unreadable(self._url, error))

    def eof_received(self) -> None:
        if self._response is not None and self._open_ended:  # end of file ends the body
            self._keep_alive = False
            self.on_message_complete()

    def connection_lost(self, error: Exception | None) -> None:
        kind = LinkInterrupted if self._response is not None and self._size else _ClosedUnanswered
        self._fail(interrupted(self._url, error or "closed", kind))

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_body(self, piece: bytes) -> None:
        self._pieces.append(piece)

    def on_headers_complete(self) -> None:
        self._open_ended = not {"content-length", "transfer-encoding"} & self._headers.keys()

    def on_message_complete(self) -> None:
        if self._parser.get_status_code() < 200:  # informational: the final response follows
            self._headers, self._pieces, self._open_ended = {}, [], False
            return
        self._keep_alive = self._keep_alive and self._parser.should_keep_alive()
        if self._response is not None and not self._response.done():
            self._response.set_result(
                Response(self._parser.get_status_code(), self._headers, b"".join(self._pieces))
            )


async def _connect(url: str, tls: ssl.SSLContext | None) -> _WorkerConnection:
    parts = httpx.URL(url)
    port = parts.port or (443 if tls else 80)
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            _, connection = await asyncio.get_running_loop().create_connection(
                lambda: _WorkerConnection(url), parts.raw_host.decode(), port, ssl=tls
            )
    except (OSError, TimeoutError, UnicodeError, OverflowError) as error:
        # The last two mean that the address is invalid.
        raise unreachable(url, str(error) or "no answer in time") from error
    return connection
