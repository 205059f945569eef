"""Connections to ports of a sandbox: opened by the worker, or accepted by a listener inside."""

from __future__ import annotations

import asyncio
from typing import Final

from sandlot.domain.errors import InvalidRequest, LinkInterrupted
from sandlot.providers.base import ByteStream
from sandlot.providers.link.calls import ANSWER_TIMEOUT_S, Call
from sandlot.providers.link.link import AgentLink
from sandlot.providers.link.mux import Mux
from sandlot.providers.link.stream import Data, Stream
from sandlot.wire.agent_messages import flag
from sandlot.wire.frames import ProtocolViolation

NET_MIN_MINOR: Final = 2  # the first minor version of the protocol that has the net link
NETWORKS: Final = ("tcp", "unix")
MAX_OPEN_S: Final = 24 * 3600.0  # of one connection


class PortStream(ByteStream):
    """Implements ``ByteStream`` on one stream of an agent link."""

    def __init__(self, link: AgentLink, mux: Mux, stream: Stream) -> None:
        self._link = link
        self._mux = mux
        self._stream = stream
        self._received = 0
        self._expiry = mux.loop.call_later(MAX_OPEN_S, self._expire)

    async def receive(self) -> bytes:
        with Call(self._link, self._mux):
            while True:
                item = await self._stream.receive()
                if item is None:
                    return b""
                if not isinstance(item, Data) or item.channel != 0 or item.offset != self._received:
                    raise ProtocolViolation("a connection sent something other than bytes")
                self._received += len(item.data)
                if item.data:  # the caller would take empty bytes for the end
                    return item.data

    async def send(self, data: bytes) -> None:
        with Call(self._link, self._mux):
            await self._stream.send_data(data)

    async def send_end(self) -> None:
        self._stream.send_end()

    def abort(self) -> None:
        self._expiry.cancel()
        self._stream.close()

    def _expire(self) -> None:
        self._stream.reset("cancelled", f"The connection was open for {MAX_OPEN_S:g} s, the longest allowed.")
        self._stream.close()


async def connect(link: AgentLink, address: str, network: str) -> PortStream:
    """Connects to an address in the sandbox, as the sandbox's user."""
    if network not in NETWORKS:
        raise InvalidRequest("network must be tcp or unix.")
    # An older agent connects on its files link.
    mux = await (link.net() if await link.agent_has(NET_MIN_MINOR) else link.files())
    with Call(link, mux) as call:
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                await call.open(
                    {"op": "port.connect", "network": network, "address": address}, end=False, half_close=True
                )
                if not flag(await call.next_message(), "connected"):
                    raise ProtocolViolation("a connection that is not connected")
        except TimeoutError:
            raise LinkInterrupted(f"No connection within {ANSWER_TIMEOUT_S:g} s.") from None
        return PortStream(link, mux, call.detach_stream())
