"""Connections that carry an exec's events: a stream of server-sent events, or a WebSocket.

A stream is read once and may break. ``HttpExecution`` (``execution.py``) decides what to do then.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from typing import Any, Final, Protocol

import httpx
import msgspec
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from sandlot.client.http.streams.sse import EventParser
from sandlot.client.http.streams.websocket import open_socket
from sandlot.client.http.transport.connection import Connection
from sandlot.client.http.transport.errors import (
    error_of_answer,
    error_of_problem,
    error_of_transport,
    interrupted,
    unreadable,
)
from sandlot.client.http.transport.pools import close_with_loop
from sandlot.domain.errors import InvalidRequest, SandlotError, Unsupported
from sandlot.domain.execution import Channel, ExecEvent, Output
from sandlot.wire.event_bodies import EVENT_BODIES, event_of

# The server sends at least a ping every 15 s, so a longer silence means a dead connection.
SILENCE_S: Final = 50.0
MAX_MESSAGE_BYTES: Final = 32 * 1024 * 1024
MAX_INPUT_BYTES: Final = 64 * 1024  # of stdin per message
CLOSE_CODE_BASE: Final = 4000  # an error's close code is this plus its HTTP status

_EVENTS: Final = {name: msgspec.json.Decoder(body) for name, body in EVENT_BODIES.items()}
_OUTPUT_HEAD: Final = struct.Struct(">BQ")
_CHANNELS: Final = {1: Channel.STDOUT, 2: Channel.STDERR}


class _Kind(msgspec.Struct):
    type: str


_KIND: Final = msgspec.json.Decoder(_Kind)


class EventStream(Protocol):
    """One connection that carries an exec's events, and perhaps its input."""

    def events(self) -> AsyncIterator[ExecEvent]:
        """Yield events until the connection ends; raise ``LinkInterrupted`` if it breaks."""
        ...

    async def send(self, message: bytes | str) -> None:
        """Send input (bytes) or a control message (text)."""
        ...

    async def close(self) -> None: ...


def decode_event(connection: Connection, name: str, body: bytes | str) -> ExecEvent | None:
    """Decode an event; None if this version does not know it.

    An error event is raised as its error.
    """
    if name == "error":
        raise error_of_problem(body)
    decoder = _EVENTS.get(name)
    if decoder is None:
        return None
    try:
        return event_of(decoder.decode(body))
    except (msgspec.MsgspecError, InvalidRequest) as error:
        raise unreadable(connection.url, error) from error


class SseEventStream:
    """An ``EventStream`` of server-sent events. It takes no input."""

    def __init__(self, connection: Connection, response: httpx.Response) -> None:
        self._connection = connection
        self._response = response

    @classmethod
    async def open(
        cls, connection: Connection, method: str, path: str, body: bytes | None = None
    ) -> SseEventStream:
        headers = {"Accept": "text/event-stream"}
        return cls(
            connection,
            await connection.open(method, path, body, headers=headers, read_timeout_s=SILENCE_S),
        )

    async def events(self) -> AsyncIterator[ExecEvent]:
        parser = EventParser()
        try:
            async for chunk in self._response.aiter_raw():
                for raw in parser.feed(chunk):
                    event = decode_event(self._connection, raw.name, raw.data)
                    if event is not None:
                        yield event
        except (httpx.HTTPError, httpx.StreamError) as error:
            raise error_of_transport(self._connection.url, error) from error

    async def send(self, message: bytes | str) -> None:
        raise Unsupported("This command was started without stdin. Start it with stdin=True.")

    async def close(self) -> None:
        await self._response.aclose()


class WebSocketEventStream:
    """An ``EventStream`` over a WebSocket. It also carries input."""

    def __init__(self, connection: Connection, socket: ClientConnection) -> None:
        self._connection = connection
        self._socket = socket
        self._closer = close_with_loop(self._abort)  # in case it is still open when its loop ends

    @classmethod
    async def open(cls, connection: Connection, path: str) -> WebSocketEventStream:
        socket = await open_socket(connection, path, max_message_bytes=MAX_MESSAGE_BYTES)
        stream = cls(connection, socket)
        await anext(stream._closer)
        return stream

    async def events(self) -> AsyncIterator[ExecEvent]:
        try:
            while True:
                async with asyncio.timeout(SILENCE_S):
                    message = await self._socket.recv()
                event = self._event(message)
                if event is not None:
                    yield event
        except ConnectionClosed as closed:
            raise self._close_error(closed) from closed
        except TimeoutError as error:
            raise interrupted(self._connection.url, "it went silent") from error

    def _event(self, message: Any) -> ExecEvent | None:
        if isinstance(message, str):
            try:
                kind = _KIND.decode(message).type
            except msgspec.MsgspecError as error:
                raise unreadable(self._connection.url, error) from error
            return decode_event(self._connection, kind, message)
        if len(message) < _OUTPUT_HEAD.size or message[0] not in _CHANNELS:
            raise unreadable(self._connection.url, "a message has no channel and offset")
        channel, offset = _OUTPUT_HEAD.unpack_from(message)
        return Output(_CHANNELS[channel], offset, bytes(message[_OUTPUT_HEAD.size :]))

    def _close_error(self, closed: ConnectionClosed) -> SandlotError:
        url = self._connection.url
        if closed.rcvd is not None and closed.rcvd.code > CLOSE_CODE_BASE:
            return error_of_answer(url, closed.rcvd.code - CLOSE_CODE_BASE, closed.rcvd.reason.encode(), {})
        return interrupted(url, closed)

    async def send(self, message: bytes | str) -> None:
        try:
            if isinstance(message, str):
                await self._socket.send(message)
            else:
                for at in range(0, len(message), MAX_INPUT_BYTES):
                    await self._socket.send(message[at : at + MAX_INPUT_BYTES])
        except ConnectionClosed as closed:
            raise self._close_error(closed) from closed

    async def close(self) -> None:
        await self._socket.close()
        await self._closer.aclose()

    async def _abort(self) -> None:
        self._socket.transport.abort()
