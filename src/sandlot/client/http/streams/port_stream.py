"""``HttpPortStream``: a connection to a port of a sandbox, over a WebSocket to the server."""

from __future__ import annotations

from typing import Final

import msgspec
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from sandlot.client.http.streams.websocket import open_socket
from sandlot.client.http.transport.connection import Connection
from sandlot.client.http.transport.errors import error_of_answer, error_of_problem, interrupted, unreadable
from sandlot.client.http.transport.pools import close_with_loop
from sandlot.domain.computer import CLOSE_WITHIN_S, ByteStream
from sandlot.domain.errors import SandlotError
from sandlot.wire.network.preview_bodies import END_MESSAGE

MAX_MESSAGE_BYTES: Final = 1024 * 1024
PIECE_BYTES: Final = 64 * 1024
# The server answers after it has connected, which takes a program that does not accept up to 15 s.
OPEN_S: Final = 20.0
CLOSE_CODE_BASE: Final = 4000  # an error's close code is this plus its HTTP status
NORMAL: Final = 1000


class _Kind(msgspec.Struct):
    type: str


_KIND: Final = msgspec.json.Decoder(_Kind)


class HttpPortStream(ByteStream):
    """Implements ``ByteStream``."""

    def __init__(self, connection: Connection, socket: ClientConnection) -> None:
        self._connection = connection
        self._socket = socket
        self._said_end = False
        self._ended = False  # the program inside has said that it sends no more
        self._closer = close_with_loop(self._abort)  # in case it is still open when its loop ends

    @classmethod
    async def open(cls, connection: Connection, path: str) -> HttpPortStream:
        socket = await open_socket(connection, path, max_message_bytes=MAX_MESSAGE_BYTES, open_s=OPEN_S)
        stream = cls(connection, socket)
        await anext(stream._closer)
        return stream

    async def receive(self) -> bytes:
        while not self._ended:
            try:
                message = await self._socket.recv()
            except ConnectionClosed as closed:
                if closed.rcvd is not None and closed.rcvd.code == NORMAL:
                    break
                raise self._close_error(closed) from closed
            if isinstance(message, str):
                self._note(message)
            elif message:
                return message
        self._ended = True
        return b""

    def _note(self, message: str) -> None:
        try:
            kind = _KIND.decode(message).type
        except msgspec.MsgspecError as error:
            raise unreadable(self._connection.url, error) from error
        if kind == "error":
            raise error_of_problem(message)
        self._ended = self._ended or kind == "end"

    async def send(self, data: bytes) -> None:
        for at in range(0, len(data), PIECE_BYTES):
            await self._send(data[at : at + PIECE_BYTES])

    async def send_end(self) -> None:
        if not self._said_end:
            self._said_end = True
            await self._send(END_MESSAGE)

    async def _send(self, message: bytes | str) -> None:
        try:
            await self._socket.send(message)
        except ConnectionClosed as closed:
            raise self._close_error(closed) from closed

    async def close(self, within_s: float = CLOSE_WITHIN_S) -> None:
        await super().close(within_s)
        await self._socket.wait_closed()
        await self._closer.aclose()

    def abort(self) -> None:
        self._socket.transport.abort()

    def _close_error(self, closed: ConnectionClosed) -> SandlotError:
        url = self._connection.url
        if closed.rcvd is not None and closed.rcvd.code > CLOSE_CODE_BASE:
            return error_of_answer(url, closed.rcvd.code - CLOSE_CODE_BASE, closed.rcvd.reason.encode(), {})
        return interrupted(url, closed)

    async def _abort(self) -> None:
        self._socket.transport.abort()
