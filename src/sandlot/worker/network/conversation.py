"""One connection of a program to the proxy: requests one after the other, or a tunnel.

Every request is decided anew, and each plain request gets a connection to its host of its own. So nothing
that one request leaves behind, in either direction, can be taken for a part of the next.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

import h11

from sandlot.domain.network.hosts import Target
from sandlot.providers.base import ByteStream
from sandlot.worker.network.client_hello import ACCESS_DENIED
from sandlot.worker.network.dialer import EgressDenied
from sandlot.worker.network.gate import Gate, bytes_used_up
from sandlot.worker.network.http import (
    HTTP_PORT,
    BadRequest,
    plain_target,
    request_for_host,
    response_for_program,
    tunnel_target,
)
from sandlot.worker.network.meter import BytesUsedUp
from sandlot.worker.network.names import reason_of
from sandlot.worker.network.options import ProxyOptions
from sandlot.worker.network.streams import BROKEN, HostStream
from sandlot.worker.network.tunnel import TunnelDenied, read_opening, relay

MAX_REASON_CHARS: Final = 400
HEAD_TOO_LARGE: Final = 431


class HostProblem(Exception):
    """The host cannot be reached, or does not answer as it should. ``status``: 502 or 504."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Conversation:
    def __init__(self, stream: ByteStream, gate: Gate, options: ProxyOptions) -> None:
        self.target: Target | None = None  # of the open tunnel or request
        self._stream = stream
        self._gate = gate
        self._options = options
        self._inside: Target | None = None  # of a tunnel through which the program speaks plain HTTP
        self._http = self._new_http()
        self._sending = asyncio.Lock()
        self._limit = asyncio.timeout(None)
        self._ends_at = asyncio.get_running_loop().time() + options.total_s
        self._stopped = False

    async def run(self) -> None:
        """Serve the program until it ends, breaks a rule, or takes too long."""
        try:
            async with self._limit:
                await self._serve()
        except (TimeoutError, HostProblem, BytesUsedUp, h11.ProtocolError, *BROKEN):
            pass  # an answer has begun, or nobody is there to read one: the program sees a broken connection
        finally:
            self._stream.abort()

    def stop(self) -> None:
        """End at once: the target is no longer allowed."""
        self._stopped = True
        if not self._limit.expired():
            self._limit.reschedule(asyncio.get_running_loop().time())

    async def _serve(self) -> None:
        try:
            while (request := await self._next_request()) is not None:
                if request.method == b"CONNECT" and self._inside is None:
                    if not await self._tunnel(request):
                        return
                    continue
                await self._forward(request)
                if self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE:
                    break  # the host answered before it had the whole request, or the program wants no more
                self._http.start_next_cycle()
                self.target = None
        except BadRequest as error:
            await self._refuse(400, "Bad Request", f"{error}\n")
        except h11.RemoteProtocolError as error:
            too_large = error.error_status_hint == HEAD_TOO_LARGE
            text = "The head of the request is too large." if too_large else "The request is not valid HTTP."
            await self._refuse(error.error_status_hint, "Bad Request", f"{text}\n")
        except EgressDenied as error:
            self._gate.record(error.denied)
            # Of the answer to CONNECT, many tools show the status line alone.
            await self._refuse(403, error.denied.line, error.denied.text)
        except HostProblem as error:
            await self._refuse(error.status, "Bad Gateway", f"{error}\n")
        await self._stream.close(self._options.last_bytes_s)

    # --- requests -----------------------------------------------------------------------------

    async def _next_request(self) -> h11.Request | None:
        """The time for a head begins with its first byte, and more bytes do not extend it."""
        begun = bool(self._http.trailing_data[0])
        self._allow(self._options.head_s if begun else self._options.keep_alive_s)
        while (event := self._http.next_event()) is h11.NEED_DATA:
            data = await self._stream.receive()
            if data and not begun:
                begun = True
                self._allow(self._options.head_s)
            self._http.receive_data(data)
        return event if isinstance(event, h11.Request) else None

    async def _forward(self, request: h11.Request) -> None:
        target, path = plain_target(request, self._inside)
        self._gate.decide(target)
        self.target = target
        host = await self._connect(target)
        client = h11.Connection(h11.CLIENT, max_incomplete_event_size=self._options.max_head_bytes)
        sending = asyncio.ensure_future(
            self._send_request(client, host, request_for_host(request, target, path))
        )
        try:
            await self._send_response(client, host)
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
            host.abort()

    async def _send_request(self, client: h11.Connection, host: HostStream, head: h11.Request) -> None:
        """Closes the connection to the host if the request breaks off, which ends the answer too."""
        try:
            await self._send_to_host(host, client.send(head))
            while not isinstance(event := await self._next_of_body(), h11.EndOfMessage):
                if not isinstance(event, h11.Data):
                    raise ConnectionResetError("the program broke off its request")
                await self._send_to_host(host, client.send(h11.Data(bytes(event.data))))
            await self._send_to_host(host, client.send(h11.EndOfMessage()))  # without trailers
        except (BytesUsedUp, h11.ProtocolError, *BROKEN):
            host.abort()

    async def _next_of_body(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        """What comes next of the request's body, or its end."""
        while (event := self._http.next_event()) is h11.NEED_DATA:
            if self._http.they_are_waiting_for_100_continue and self._http.our_state is h11.SEND_RESPONSE:
                await self._send(h11.InformationalResponse(status_code=100, headers=[], reason=b"Continue"))
            self._http.receive_data(await self._stream.receive())
            self._touch()
        return event

    async def _send_response(self, client: h11.Connection, host: HostStream) -> None:
        while True:
            try:
                event = client.next_event()
                if event is h11.NEED_DATA:
                    client.receive_data(await host.receive())
                    self._touch()
                    continue
            except (h11.RemoteProtocolError, OSError):
                raise self._broken_answer() from None
            if isinstance(event, h11.Response):
                await self._send(response_for_program(event))
            elif isinstance(event, h11.Data):
                await self._metered(self._gate.meter.receiving(len(event.data)))
                await self._send(h11.Data(bytes(event.data)))
            elif isinstance(event, h11.EndOfMessage):
                await self._send(h11.EndOfMessage())  # without trailers
                return
            elif not isinstance(event, h11.InformationalResponse):
                raise self._broken_answer()

    # --- tunnels ------------------------------------------------------------------------------

    async def _tunnel(self, request: h11.Request) -> bool:
        """Returns whether plain requests follow through the tunnel."""
        target = tunnel_target(request)
        allowed = self._gate.decide(target)
        self.target = target
        if target.port == HTTP_PORT and not allowed.any_protocol:
            # Some tools open a tunnel for http too. Each request in it is read, as if there were none.
            first = await self._accept_tunnel()
            self._inside, self._http = target, self._new_http()
            if first:
                self._http.receive_data(first)
            return True
        host = await self._connect(target)
        try:
            opening: Callable[[], Awaitable[bytes]] = partial(
                read_opening, self._stream, await self._accept_tunnel(), target, allowed
            )
            if not allowed.any_protocol:  # the host hears nothing before the name is checked
                self._allow(self._options.head_s)
                opening = partial(_given, await opening())
            self._touch()
            await self._metered(relay(self._stream, host, opening, self._gate.meter, self._touch))
        except TunnelDenied as error:
            self._gate.record(error.denied)
            if error.tls:
                await self._stream.send(ACCESS_DENIED)
            await self._stream.close(self._options.last_bytes_s)
        finally:
            host.abort()
        return False

    async def _accept_tunnel(self) -> bytes:
        """Returns what the program has already sent."""
        while not isinstance(self._http.next_event(), h11.EndOfMessage):
            pass  # CONNECT has no body, so its end follows at once
        await self._send(h11.Response(status_code=200, headers=[], reason=b"Connection established"))
        return self._http.trailing_data[0]

    # --- both ---------------------------------------------------------------------------------

    async def _connect(self, target: Target) -> HostStream:
        self._touch()
        try:
            return await self._gate.connect(target)
        except TimeoutError:
            raise HostProblem(504, f"{target} did not answer in time.") from None
        except OSError as error:
            raise HostProblem(502, f"{target} cannot be reached: {reason_of(error)}.") from None

    async def _send_to_host(self, host: HostStream, data: bytes | None) -> None:
        if data:
            await self._metered(self._gate.meter.sending(len(data)))
            await host.send(data)

    async def _metered(self, passing: Awaitable[None]) -> None:
        try:
            await passing
        except BytesUsedUp:
            if self.target is not None:
                self._gate.record(bytes_used_up(self.target))
            raise
        self._touch()

    async def _send(self, event: h11.Event) -> None:
        data = self._http.send(event)
        if data:
            async with self._sending:  # a request and its answer are passed on at the same time
                await self._stream.send(data)
            self._touch()

    async def _refuse(self, status: int, reason: str, text: str) -> None:
        if self._http.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            raise HostProblem(status, text)  # an answer has begun
        body = text.encode()
        headers = [
            ("content-type", "text/plain; charset=utf-8"),
            ("content-length", str(len(body))),
            ("connection", "close"),
        ]
        line = reason.encode("ascii", "replace")[:MAX_REASON_CHARS]
        await self._send(h11.Response(status_code=status, headers=headers, reason=line))
        await self._send(h11.Data(body))
        await self._send(h11.EndOfMessage())

    def _broken_answer(self) -> HostProblem:
        return HostProblem(502, f"{self.target} broke off its answer, or it is not valid HTTP.")

    def _touch(self) -> None:
        self._allow(self._options.idle_s)

    def _allow(self, seconds: float) -> None:
        """Let the conversation go on for so long."""
        if not self._stopped and not self._limit.expired():
            now = asyncio.get_running_loop().time()
            self._limit.reschedule(min(now + seconds, self._ends_at))

    def _new_http(self) -> h11.Connection:
        return h11.Connection(h11.SERVER, max_incomplete_event_size=self._options.max_head_bytes)


async def _given(data: bytes) -> bytes:
    return data
