"""One WebSocket of a visitor, joined to one of a program in a sandbox, message by message.

Both sides speak their own WebSocket with the server: uvicorn reads the visitor's, and ``websockets`` reads
the program's. So neither can send what is not a message.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

from starlette.websockets import WebSocket, WebSocketDisconnect
from websockets.client import ClientProtocol
from websockets.exceptions import InvalidHandshake, InvalidState
from websockets.frames import Frame, Opcode
from websockets.http11 import Response
from websockets.protocol import Event, State
from websockets.typing import Subprotocol
from websockets.uri import parse_uri

from sandlot.api.previews.headers import for_program, for_visitor
from sandlot.api.previews.options import PreviewOptions
from sandlot.api.previews.pages import Refused, broken_answer
from sandlot.api.previews.visits import Visit
from sandlot.domain.capacity.budget import Account
from sandlot.domain.computer import ByteStream
from sandlot.domain.errors import Busy, SandlotError

HANDSHAKE_S: Final = 30.0
# Seconds for a visitor to take a message.
TAKEN_WITHIN_S: Final = 60.0
GOING_AWAY: Final = 1001
INVALID_DATA: Final = 1007
TRY_LATER: Final = 1013
BROKEN: Final = 1011
_NO_STATUS: Final = 1005


class WebSocketVisit:
    """Call ``run`` once. It raises ``Refused`` if the visitor has got no answer yet."""

    def __init__(
        self,
        websocket: WebSocket,
        stream: ByteStream,
        visit: Visit,
        options: PreviewOptions,
        account: Account,
        *,
        authorization: bool,
    ) -> None:
        self._websocket = websocket
        self._stream = stream
        self._visit = visit
        self._options = options
        self._account = account
        self._authorization = authorization
        self._sending = asyncio.Lock()
        self._first: list[Event] = []  # what came together with the handshake
        self._message = bytearray()  # not a list: fragments may be empty, and without number
        self._is_text = False
        self._held = 0  # bytes of the program that are not yet with the visitor
        self._protocol = ClientProtocol(
            parse_uri("ws://localhost/"),
            subprotocols=[Subprotocol(name) for name in websocket.scope["subprotocols"]] or None,
            max_size=options.max_message_bytes,
        )

    async def run(self) -> None:
        try:
            async with asyncio.timeout(HANDSHAKE_S):
                answer = await self._shake_hands()
        except TimeoutError:
            raise Refused(504, "No answer", "The program did not answer in time.") from None
        except (InvalidHandshake, InvalidState, SandlotError, OSError, ValueError):
            raise broken_answer(self._visit.port) from None
        headers = for_visitor(_pairs(answer), self._visit.place)
        await self._websocket.accept(
            self._protocol.subprotocol, [pair for pair in headers if pair[0] == b"set-cookie"]
        )
        await self._relay()

    async def _shake_hands(self) -> Response:
        request = self._protocol.connect()
        request.path = self._visit.target.decode("ascii")
        del request.headers["Host"]
        request.headers["Host"] = self._visit.place.local.decode()
        passed = for_program(
            self._websocket.scope["headers"], self._visit.place, authorization=self._authorization
        )
        for name, value in passed:
            request.headers[name.decode("ascii")] = value.decode("latin-1")
        self._protocol.send_request(request)
        await self._flush()
        while self._protocol.state is State.CONNECTING:
            data = await self._stream.receive()
            if data:
                self._protocol.receive_data(data)
            else:
                self._protocol.receive_eof()
            if self._protocol.handshake_exc is not None:
                raise self._protocol.handshake_exc
        answer, *self._first = self._protocol.events_received()
        assert isinstance(answer, Response)
        return answer

    async def _relay(self) -> None:
        tasks = [asyncio.ensure_future(self._outward()), asyncio.ensure_future(self._inward())]
        code, reason = BROKEN, ""
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            code, reason = done.pop().result()
        except (WebSocketDisconnect, ConnectionError):
            return  # the visitor is gone
        except Busy:
            code = TRY_LATER
        except UnicodeDecodeError:
            code = INVALID_DATA
        except (SandlotError, OSError, InvalidState, TimeoutError):
            code = GOING_AWAY
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        with suppress(RuntimeError, WebSocketDisconnect):  # the visitor has closed in the same moment
            await self._websocket.close(code, reason)

    async def _inward(self) -> tuple[int, str]:
        while True:
            message = await self._websocket.receive()
            if message["type"] == "websocket.disconnect":
                await self._say_goodbye(message.get("code", _NO_STATUS))
                raise WebSocketDisconnect
            if (text := message.get("text")) is not None:
                self._protocol.send_text(text.encode())
            else:
                self._protocol.send_binary(message["bytes"])
            await self._flush()

    async def _outward(self) -> tuple[int, str]:
        """Returns the code and the reason with which the program closes."""
        for event in self._first:
            await self._take(event)
        self._hold_what_is_left()
        while True:
            data = await self._stream.receive()
            self._account.hold(len(data))
            self._held += len(data)
            if data:
                self._protocol.receive_data(data)
            else:
                self._protocol.receive_eof()
            for event in self._protocol.events_received():
                await self._take(event)
            await self._flush()  # answers to pings, and to a close
            self._hold_what_is_left()
            if not data or self._protocol.state is not State.OPEN:
                return self._goodbye()

    async def _take(self, frame: Event) -> None:
        assert isinstance(frame, Frame)
        if frame.opcode not in (Opcode.TEXT, Opcode.BINARY, Opcode.CONT):
            return
        if frame.opcode is not Opcode.CONT:
            self._is_text = frame.opcode is Opcode.TEXT
        self._message += frame.data
        if not frame.fin:
            return
        whole, self._message = bytes(self._message), bytearray()
        async with asyncio.timeout(TAKEN_WITHIN_S):
            if self._is_text:
                await self._websocket.send_text(whole.decode())
            else:
                await self._websocket.send_bytes(whole)

    def _hold_what_is_left(self) -> None:
        """What has come of a message that is not complete. Pings and empty fragments leave nothing."""
        left = len(self._message) + len(self._protocol.reader.buffer)
        if left > self._held:
            self._account.hold(left - self._held)
        else:
            self._account.release(self._held - left)
        self._held = left

    def _goodbye(self) -> tuple[int, str]:
        close = self._protocol.close_rcvd
        if close is None:
            # Its own fault, such as a message that is too large, or its end without a word.
            sent = self._protocol.close_sent
            return (BROKEN, "") if sent is None else (int(sent.code), sent.reason)
        return (1000 if close.code == _NO_STATUS else int(close.code)), close.reason

    async def _say_goodbye(self, code: int) -> None:
        if self._protocol.state is State.OPEN:
            sendable = code in (1000, 1001) or 3000 <= code < 5000
            self._protocol.send_close(code if sendable else GOING_AWAY)
            await self._flush()

    async def _flush(self) -> None:
        async with self._sending:
            for data in self._protocol.data_to_send():
                if data:
                    await self._stream.send(data)


def _pairs(answer: Response) -> list[tuple[bytes, bytes]]:
    return [
        (name.lower().encode("latin-1"), value.encode("latin-1"))
        for name, value in answer.headers.raw_items()
    ]
