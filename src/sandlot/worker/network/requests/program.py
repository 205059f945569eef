"""The program's end of a connection to the proxy: requests and answers in HTTP/1.1, each in its time."""

from __future__ import annotations

import asyncio
from typing import Final

import h11

from sandlot.providers.base import ByteStream
from sandlot.worker.network.options import ProxyOptions
from sandlot.worker.network.streams import HostProblem

MAX_REASON_CHARS: Final = 400


class Program:
    """``limit`` bounds the whole conversation. Whoever reads or sends moves it on."""

    def __init__(self, stream: ByteStream, options: ProxyOptions) -> None:
        self.stream = stream
        self.http = self._new_http(options)
        self.limit = asyncio.timeout(None)
        self._options = options
        self._sending = asyncio.Lock()
        self._ends_at = asyncio.get_running_loop().time() + options.total_s
        self._stopped = False

    # --- time ---------------------------------------------------------------------------------

    def allow(self, seconds: float) -> None:
        """Let the conversation go on for so long."""
        if not self._stopped and not self.limit.expired():
            now = asyncio.get_running_loop().time()
            self.limit.reschedule(min(now + seconds, self._ends_at))

    def touch(self) -> None:
        """Something was read or sent."""
        self.allow(self._options.idle_s)

    def stop(self) -> None:
        """End at once."""
        self._stopped = True
        if not self.limit.expired():
            self.limit.reschedule(asyncio.get_running_loop().time())

    # --- reading ------------------------------------------------------------------------------

    async def next_request(self) -> h11.Request | None:
        """The time for a head begins with its first byte, and more bytes do not extend it."""
        begun = bool(self.http.trailing_data[0])
        self.allow(self._options.head_s if begun else self._options.keep_alive_s)
        while (event := self.http.next_event()) is h11.NEED_DATA:
            data = await self.stream.receive()
            if data and not begun:
                begun = True
                self.allow(self._options.head_s)
            self.http.receive_data(data)
        return event if isinstance(event, h11.Request) else None

    async def next_of_body(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        """What comes next of the request's body, or its end."""
        while (event := self.http.next_event()) is h11.NEED_DATA:
            if self.http.they_are_waiting_for_100_continue and self.http.our_state is h11.SEND_RESPONSE:
                await self.send(h11.InformationalResponse(status_code=100, headers=[], reason=b"Continue"))
            self.http.receive_data(await self.stream.receive())
            self.touch()
        return event

    # --- sending ------------------------------------------------------------------------------

    async def send(self, event: h11.Event) -> None:
        data = self.http.send(event)
        if data:
            async with self._sending:  # a request and its answer are passed on at the same time
                await self.stream.send(data)
            self.touch()

    async def refuse(self, status: int, reason: str, text: str) -> None:
        if self.http.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            raise HostProblem(status, text)  # an answer has begun
        body = text.encode()
        headers = [
            ("content-type", "text/plain; charset=utf-8"),
            ("content-length", str(len(body))),
            ("connection", "close"),
        ]
        line = reason.encode("ascii", "replace")[:MAX_REASON_CHARS]
        await self.send(h11.Response(status_code=status, headers=headers, reason=line))
        await self.send(h11.Data(body))
        await self.send(h11.EndOfMessage())

    async def accept_tunnel(self) -> bytes:
        """Returns what the program has already sent into the tunnel."""
        while not isinstance(self.http.next_event(), h11.EndOfMessage):
            pass  # CONNECT has no body, so its end follows at once
        await self.send(h11.Response(status_code=200, headers=[], reason=b"Connection established"))
        return self.http.trailing_data[0]

    def speak_inside(self, stream: ByteStream, first: bytes) -> None:
        """Requests follow inside the tunnel, on ``stream``. ``first``: what has come of them."""
        self.stream, self.http = stream, self._new_http(self._options)
        if first:
            self.http.receive_data(first)

    async def finish(self) -> None:
        await self.stream.close(self._options.last_bytes_s)

    def _new_http(self, options: ProxyOptions) -> h11.Connection:
        return h11.Connection(h11.SERVER, max_incomplete_event_size=options.max_head_bytes)
