"""One request of a program and its answer, on a connection to the host of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass, field

import h11

from sandlot.domain.network.hosts import Target
from sandlot.worker.network.broker.redaction import NOTHING, Redaction
from sandlot.worker.network.gate import Gate
from sandlot.worker.network.http import response_for_program
from sandlot.worker.network.meter import BytesUsedUp
from sandlot.worker.network.requests.program import Program
from sandlot.worker.network.streams import BROKEN, HostProblem, HostStream


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A request as it leaves the worker.

    tls: whether the worker speaks TLS with the host.
    declared: whether the operator named the host as an upstream.
    redaction: what the program must not read in the answer.
    """

    target: Target
    head: h11.Request = field(repr=False)  # it may have a secret
    tls: bool = False
    declared: bool = False
    redaction: Redaction = NOTHING


class Exchange:
    def __init__(self, program: Program, gate: Gate, outgoing: Outgoing, max_head_bytes: int) -> None:
        self._program = program
        self._gate = gate
        self._outgoing = outgoing
        self._client = h11.Connection(h11.CLIENT, max_incomplete_event_size=max_head_bytes)

    async def run(self) -> None:
        """Raises ``EgressDenied`` and ``HostProblem``."""
        outgoing = self._outgoing
        self._program.touch()
        host = await self._gate.connect(outgoing.target, tls=outgoing.tls, declared=outgoing.declared)
        sending = asyncio.ensure_future(self._send_request(host))
        try:
            await self._send_response(host)
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
            host.abort()

    async def _send_request(self, host: HostStream) -> None:
        """Closes the connection to the host if the request breaks off, which ends the answer too."""
        client = self._client
        try:
            await self._send_to_host(host, client.send(self._outgoing.head))
            while not isinstance(event := await self._program.next_of_body(), h11.EndOfMessage):
                if not isinstance(event, h11.Data):
                    raise ConnectionResetError("the program broke off its request")
                await self._send_to_host(host, client.send(h11.Data(bytes(event.data))))
            await self._send_to_host(host, client.send(h11.EndOfMessage()))  # without trailers
        except (BytesUsedUp, h11.ProtocolError, *BROKEN):
            host.abort()

    async def _send_response(self, host: HostStream) -> None:
        redaction = self._outgoing.redaction
        body = redaction.body()
        while True:
            try:
                event = self._client.next_event()
                if event is h11.NEED_DATA:
                    data = await host.receive()
                    await self._metered(self._gate.meter.receiving(len(data)))  # heads are bytes too
                    self._client.receive_data(data)
                    continue
            except (h11.RemoteProtocolError, OSError):
                raise self._broken_answer() from None
            if isinstance(event, h11.Response):
                await self._program.send(redaction.head(response_for_program(event)))
            elif isinstance(event, h11.Data):
                await self._send_data(body.feed(bytes(event.data)))
            elif isinstance(event, h11.EndOfMessage):
                await self._send_data(body.end())
                await self._program.send(h11.EndOfMessage())  # without trailers
                return
            elif not isinstance(event, h11.InformationalResponse):
                raise self._broken_answer()

    async def _send_data(self, data: bytes) -> None:
        if data:
            await self._program.send(h11.Data(data))

    async def _send_to_host(self, host: HostStream, data: bytes | None) -> None:
        if data:
            await self._metered(self._gate.meter.sending(len(data)))
            await host.send(data)

    async def _metered(self, passing: Awaitable[None]) -> None:
        await self._gate.metered(self._outgoing.target, passing)
        self._program.touch()

    def _broken_answer(self) -> HostProblem:
        return HostProblem(502, f"{self._outgoing.target} broke off its answer, or it is not valid HTTP.")
