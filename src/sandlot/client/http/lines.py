"""One connection that carries an exec's events: a stream of server-sent events, or a WebSocket.

A line is read once and may break; what to do then is the execution's business (``execution.py``).
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from typing import Any, Final, Protocol

import httpx
import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException
from websockets.http11 import Response

from sandlot.client.http.connection import Connection
from sandlot.client.http.pools import held
from sandlot.client.http.problems import (
    error_of_answer,
    error_of_problem,
    error_of_transport,
    interrupted,
    somebody_else,
    unreachable,
    unreadable,
)
from sandlot.client.http.sse import EventParser
from sandlot.domain.errors import InvalidRequest, SandlotError, Unsupported
from sandlot.domain.execution import Channel, ExecEvent, Output
from sandlot.wire.exec_bodies import EVENT_BODIES, event_of

# The server sends something every 15 seconds, be it a ping.
SILENCE_S: Final = 50.0
HANDSHAKE_S: Final = 5.0  # until a WebSocket is open, at least
SWITCHED: Final = 101  # the status of a WebSocket that is open
MAX_MESSAGE_BYTES: Final = 32 * 1024 * 1024
MAX_INPUT_BYTES: Final = 64 * 1024  # of stdin in one message
FIRST_CLOSE_CODE: Final = 4000  # an error's close code is this and its HTTP status

_EVENTS: Final = {name: msgspec.json.Decoder(body) for name, body in EVENT_BODIES.items()}
_OUTPUT_HEAD: Final = struct.Struct(">BQ")
_CHANNELS: Final = {1: Channel.STDOUT, 2: Channel.STDERR}


class _Kind(msgspec.Struct):
    type: str


_KIND: Final = msgspec.json.Decoder(_Kind)


class Line(Protocol):
    def events(self) -> AsyncIterator[ExecEvent]:
        """Ends where the connection ended; ``LinkInterrupted`` where it broke."""
        ...

    async def send(self, message: bytes | str) -> None: ...

    async def close(self) -> None: ...


def decode_event(connection: Connection, name: str, body: bytes | str) -> ExecEvent | None:
    """None for an event that this version does not know. Raises the error that an error event tells."""
    if name == "error":
        raise error_of_problem(body)
    decoder = _EVENTS.get(name)
    if decoder is None:
        return None
    try:
        return event_of(decoder.decode(body))
    except (msgspec.MsgspecError, InvalidRequest) as error:
        raise unreadable(connection.url, error) from error


class EventStreamLine:
    def __init__(self, connection: Connection, response: httpx.Response) -> None:
        self._connection = connection
        self._response = response

    @classmethod
    async def open(
        cls, connection: Connection, method: str, path: str, body: bytes | None = None
    ) -> EventStreamLine:
        headers = {"Accept": "text/event-stream"}
        return cls(
            connection,
            await connection.open(method, path, body, headers=headers, read_timeout_s=SILENCE_S),
        )

    async def events(self) -> AsyncIterator[ExecEvent]:
        parser = EventParser()
        try:
            async for chunk in self._response.aiter_raw():
                for told in parser.feed(chunk):
                    event = decode_event(self._connection, told.name, told.data)
                    if event is not None:
                        yield event
        except (httpx.HTTPError, httpx.StreamError) as error:
            raise error_of_transport(self._connection.url, error) from error

    async def send(self, message: bytes | str) -> None:
        raise Unsupported("this exec was started without stdin; start it with stdin=True")

    async def close(self) -> None:
        await self._response.aclose()


class _Handshake(connect):
    """Goes nowhere else: the key is for this server, and calls over HTTP follow no redirect either."""

    def process_redirect(self, exc: Exception) -> Exception:
        return exc


def _headers(answer: Response) -> httpx.Headers:
    """Which, unlike those of websockets, bear a name that comes twice."""
    return httpx.Headers(list(answer.headers.raw_items()))


class WebSocketLine:
    def __init__(self, connection: Connection, socket: ClientConnection) -> None:
        self._connection = connection
        self._socket = socket
        self._held = held(self._abort)  # if nobody closes it before its loop ends

    @classmethod
    async def open(cls, connection: Connection, path: str) -> WebSocketLine:
        url = connection.url
        try:
            socket = await _Handshake(
                "ws" + url.removeprefix("http") + path,
                additional_headers=connection.own_headers,
                proxy=True if connection.through_proxy else None,
                ssl=connection.tls(),
                open_timeout=max(HANDSHAKE_S, connection.connect_timeout_s),
                compression=None,
                max_size=MAX_MESSAGE_BYTES,
                # A reader that takes its time does not see the answers to our pings, and is not dead.
                ping_timeout=None,
                close_timeout=2,
            )
        except InvalidStatus as refusal:
            answer = refusal.response
            raise connection.refusal(
                answer.status_code, bytes(answer.body or b""), _headers(answer)
            ) from refusal
        except OSError as error:
            raise unreachable(url, str(error) or "no answer") from error
        except WebSocketException as error:
            raise interrupted(url, error) from error
        if socket.response is None or not connection.is_who_it_should_be(_headers(socket.response)):
            socket.transport.abort()
            raise somebody_else(url, connection.worker, SWITCHED)
        line = cls(connection, socket)
        await anext(line._held)
        return line

    async def events(self) -> AsyncIterator[ExecEvent]:
        try:
            while True:
                async with asyncio.timeout(SILENCE_S):
                    message = await self._socket.recv()
                event = self._event(message)
                if event is not None:
                    yield event
        except ConnectionClosed as closed:
            raise self._closed(closed) from closed
        except TimeoutError as error:
            raise interrupted(self._connection.url, "it has gone silent") from error

    def _event(self, message: Any) -> ExecEvent | None:
        if isinstance(message, str):
            try:
                kind = _KIND.decode(message).type
            except msgspec.MsgspecError as error:
                raise unreadable(self._connection.url, error) from error
            return decode_event(self._connection, kind, message)
        if len(message) < _OUTPUT_HEAD.size or message[0] not in _CHANNELS:
            raise unreadable(self._connection.url, "a message without channel and offset")
        channel, offset = _OUTPUT_HEAD.unpack_from(message)
        return Output(_CHANNELS[channel], offset, bytes(message[_OUTPUT_HEAD.size :]))

    def _closed(self, closed: ConnectionClosed) -> SandlotError:
        url = self._connection.url
        if closed.rcvd is not None and closed.rcvd.code > FIRST_CLOSE_CODE:
            return error_of_answer(url, closed.rcvd.code - FIRST_CLOSE_CODE, closed.rcvd.reason.encode(), {})
        return interrupted(url, closed)

    async def send(self, message: bytes | str) -> None:
        try:
            if isinstance(message, str):
                await self._socket.send(message)
            else:
                for at in range(0, len(message), MAX_INPUT_BYTES):
                    await self._socket.send(message[at : at + MAX_INPUT_BYTES])
        except ConnectionClosed as closed:
            raise self._closed(closed) from closed

    async def close(self) -> None:
        await self._socket.close()
        await self._held.aclose()

    async def _abort(self) -> None:
        self._socket.transport.abort()
