"""Ports: connections into a sandbox, and from programs inside to listeners of the worker."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from typing import Final

from sandlot.domain.errors import InvalidRequest, LinkInterrupted
from sandlot.providers.link.calls import ANSWER_TIMEOUT_S, Call
from sandlot.providers.link.link import AgentLink
from sandlot.providers.link.mux import Mux
from sandlot.providers.link.stream import Data, Message, Stream
from sandlot.wire.agent_messages import flag, integer, text
from sandlot.wire.frames import ProtocolViolation

MAX_BACKLOG: Final = 128  # connections accepted inside that the caller has not taken yet
NETWORKS: Final = ("tcp", "unix")


class PortStream:
    """Implements ``ByteStream`` on one stream of an agent link."""

    def __init__(self, link: AgentLink, mux: Mux, stream: Stream) -> None:
        self._link = link
        self._mux = mux
        self._stream = stream
        self._received = 0

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

    async def close(self) -> None:
        self._stream.close()


class AgentPortListener:
    """Implements ``PortListener``. The listener lives as long as its stream."""

    def __init__(self, link: AgentLink, mux: Mux, listeners: Listeners, stream: Stream) -> None:
        self._address = ""
        self._link = link
        self._mux = mux
        self._listeners = listeners
        self._stream = stream
        self._backlog: deque[Stream] = deque()
        self._changed = asyncio.Event()
        self._closed = False

    @property
    def address(self) -> str:
        return self._address

    def set_address(self, address: str) -> None:
        self._address = address

    def offer(self, stream: Stream) -> None:
        if len(self._backlog) >= MAX_BACKLOG:
            stream.reset("busy", "nothing accepts this listener's connections")
            return
        self._backlog.append(stream)
        self._changed.set()

    async def connections(self) -> AsyncIterator[PortStream]:
        """Yields connections as they arrive, until the listener closes. Iterate only once."""
        end_task = asyncio.get_running_loop().create_task(self._stream.receive())
        end_task.add_done_callback(self._on_stream_end)
        try:
            while not self._closed:
                while self._backlog:
                    yield PortStream(self._link, self._mux, self._backlog.popleft())
                if end_task.done():
                    self._check_end(end_task)
                    return
                self._changed.clear()
                await self._changed.wait()
        finally:
            end_task.cancel()
            await self.close()

    async def close(self) -> None:
        """Stops listening. Connections already taken stay open; those still waiting are closed."""
        self._closed = True
        self._changed.set()
        self._listeners.remove(self._stream.id)
        self._stream.close()
        while self._backlog:
            self._backlog.popleft().close()

    def _on_stream_end(self, end_task: asyncio.Task[Message | Data | None]) -> None:
        if not end_task.cancelled():
            end_task.exception()  # _check_end raises it, unless the iteration has already stopped
        self._changed.set()

    def _check_end(self, end_task: asyncio.Task[Message | Data | None]) -> None:
        if self._closed:
            return
        with Call(self._link, self._mux):
            if end_task.result() is not None:
                raise ProtocolViolation("unexpected message from a listener")


class Listeners:
    """The listeners on one core link. Passes each stream that the agent opens to its listener."""

    def __init__(self) -> None:
        self._by_stream: dict[int, AgentPortListener] = {}

    def __call__(self, stream: Stream) -> None:
        body = dict(stream.request)
        if body.get("op") != "port.accepted":
            stream.reset("unsupported", "unknown operation")
            return
        listener = self._by_stream.get(integer(body, "listener"))
        if listener is None:  # it closed while this request was on its way
            stream.reset("gone", "The listener is closed.")
        else:
            listener.offer(stream)

    def add(self, stream_id: int, listener: AgentPortListener) -> None:
        self._by_stream[stream_id] = listener

    def remove(self, stream_id: int) -> None:
        self._by_stream.pop(stream_id, None)


def _listeners_of(mux: Mux) -> Listeners:
    if not isinstance(mux.acceptor, Listeners):
        mux.acceptor = Listeners()
    return mux.acceptor


async def connect(link: AgentLink, address: str, network: str) -> PortStream:
    """Connects to an address in the sandbox.

    Uses the files link, so the sandbox's user connects.
    """
    if network not in NETWORKS:
        raise InvalidRequest("network must be tcp or unix.")
    mux = await link.files()
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


async def listen(link: AgentLink, address: str) -> AgentPortListener:
    mux = await link.core()
    listeners = _listeners_of(mux)
    with Call(link, mux) as call:
        stream = await call.open({"op": "port.listen", "address": address}, end=False)
        listener = AgentPortListener(link, mux, listeners, stream)
        listeners.add(stream.id, listener)  # before the answer: a connection may follow it at once
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                listener.set_address(text(await call.next_message(), "address"))
        except TimeoutError:
            await listener.close()
            raise LinkInterrupted(f"The sandbox did not answer within {ANSWER_TIMEOUT_S:g} s.") from None
        except BaseException:
            await listener.close()
            raise
        call.detach_stream()
        return listener
