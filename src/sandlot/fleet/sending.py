"""How a coordinator sends a create to a worker.

On connections of its own, with httptools, which reads for the server too: aiohttp takes half a millisecond
longer and httpx two and a half, as much as a coordinator may add to a create in all. Everything else that it
asks of a worker goes by the SDK.
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

from sandlot.client.http.problems import error_of_answer, interrupted, unreachable, unreadable
from sandlot.domain.errors import LinkInterrupted, SandlotError

CONNECT_S: Final = 2.0
# Longer than a worker lets a create wait for a sandbox.
ANSWER_S: Final = 90.0
# Less than a server keeps a connection that nobody uses.
KEEP_ALIVE_S: Final = 60.0
MAX_ANSWER_BYTES: Final = 1024 * 1024
# Connections that are kept for the next creates.
MAX_IDLE: Final = 32


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes


class Sender:
    """To the worker at ``url``."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._idle: list[_Line] = []
        self._closed = False

    async def post(
        self, path: str, body: bytes, headers: Mapping[str, str], tls: ssl.SSLContext | None
    ) -> tuple[int, bytes]:
        """Status and body of a good answer. The request must bear being sent twice: a connection that lay
        unused may have been closed by the other side at just this moment.
        """
        sent = False
        while self._idle:
            line = self._idle.pop()
            if line.is_usable:
                try:
                    return await self._post(line, path, body, headers)
                except _Closed:
                    sent = True
                    continue
            line.close()
        try:
            line = await _connected(self._url, tls)
        except SandlotError as error:
            error.may_have_executed = sent  # on a connection that closed after it, or with it: nobody knows
            raise
        return await self._post(line, path, body, headers)

    async def _post(
        self, line: _Line, path: str, body: bytes, headers: Mapping[str, str]
    ) -> tuple[int, bytes]:
        answer = await line.ask(path, body, headers)
        while self._idle and not self._idle[0].is_usable:
            self._idle.pop(0).close()
        if line.is_usable and len(self._idle) < MAX_IDLE and not self._closed:
            self._idle.append(line)
        else:
            line.close()
        if 200 <= answer.status < 300:
            return answer.status, answer.body
        raise error_of_answer(self._url, answer.status, answer.body, answer.headers)

    def close(self) -> None:
        self._closed = True
        while self._idle:
            self._idle.pop().close()


class _Closed(LinkInterrupted):
    """Before anything came back."""


class _Line(asyncio.Protocol):
    """One connection, for one request at a time. Methods that begin with ``on_`` are the parser's."""

    def __init__(self, url: str) -> None:
        self._url = url
        parts = httpx.URL(url)
        self._begin = b"POST " + parts.raw_path.rstrip(b"/")
        self._host = b" HTTP/1.1\r\nHost: " + parts.netloc
        self._transport: asyncio.Transport | None = None
        self._keeps = True
        self._used_at = time.monotonic()
        self._waiting: asyncio.Future[Answer] | None = None

    @property
    def is_usable(self) -> bool:
        return self._keeps and time.monotonic() - self._used_at < KEEP_ALIVE_S

    async def ask(self, path: str, body: bytes, headers: Mapping[str, str]) -> Answer:
        assert self._transport is not None
        self._parser = httptools.HttpResponseParser(self)
        self._size, self._open_ended = 0, False
        self._headers, self._pieces = dict[str, str](), list[bytes]()
        self._waiting = asyncio.get_running_loop().create_future()
        fields = "".join(f"\r\n{name}: {value}" for name, value in headers.items())
        fields += f"\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        self._transport.write(self._begin + path.encode() + self._host + fields.encode() + body)
        try:
            async with asyncio.timeout(ANSWER_S):
                return await self._waiting
        except TimeoutError as error:
            self.close()
            raise interrupted(self._url, "no answer in time") from error
        except BaseException:
            self.close()
            raise
        finally:
            self._waiting = None
            self._used_at = time.monotonic()

    def close(self) -> None:
        self._keeps = False
        if self._transport is not None:
            self._transport.abort()

    def _fail(self, error: Exception) -> None:
        self._keeps = False
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(error)

    # what comes

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self._waiting is None or self._waiting.done():  # nobody asked
            self.close()
            return
        self._size += len(data)
        if self._size > MAX_ANSWER_BYTES:
            self._fail(unreadable(self._url, f"more than {MAX_ANSWER_BYTES} bytes"))
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(unreadable(self._url, error))

    def eof_received(self) -> None:
        if self._waiting is not None and self._open_ended:  # its body ends where the connection does
            self._keeps = False
            self.on_message_complete()

    def connection_lost(self, error: Exception | None) -> None:
        kind = LinkInterrupted if self._waiting is not None and self._size else _Closed
        self._fail(interrupted(self._url, error or "closed", kind))

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_body(self, piece: bytes) -> None:
        self._pieces.append(piece)

    def on_headers_complete(self) -> None:
        self._open_ended = not {"content-length", "transfer-encoding"} & self._headers.keys()

    def on_message_complete(self) -> None:
        if self._parser.get_status_code() < 200:  # the answer is still to come
            self._headers, self._pieces, self._open_ended = {}, [], False
            return
        self._keeps = self._keeps and self._parser.should_keep_alive()
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(
                Answer(self._parser.get_status_code(), self._headers, b"".join(self._pieces))
            )


async def _connected(url: str, tls: ssl.SSLContext | None) -> _Line:
    parts = httpx.URL(url)
    port = parts.port or (443 if tls else 80)
    try:
        async with asyncio.timeout(CONNECT_S):
            _, line = await asyncio.get_running_loop().create_connection(
                lambda: _Line(url), parts.raw_host.decode(), port, ssl=tls
            )
    except (OSError, TimeoutError, UnicodeError, OverflowError) as error:  # also what is no address
        raise unreachable(url, str(error) or "no answer in time") from error
    return line
