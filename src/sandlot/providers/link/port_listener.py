"""Listeners inside a sandbox, whose connections lead to the worker.

The agent keeps the listening socket. A stream of the net link stands for it: each connection comes
as a stream that names it. When the link breaks, the listener asks for its address again on the next
link, and gets the connections that waited. (An agent older than protocol 1.2 listens on its core
link, and refuses connections while that link is down.)
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from typing import Final

from sandlot.domain.errors import Busy, LinkInterrupted, NotFound
from sandlot.providers.link.allowance import Allowance
from sandlot.providers.link.calls import ANSWER_TIMEOUT_S, Call
from sandlot.providers.link.link import AgentLink
from sandlot.providers.link.mux import Mux
from sandlot.providers.link.ports import NET_MIN_MINOR, PortStream
from sandlot.providers.link.stream import Data, LinkClosed, Message, Stream
from sandlot.wire.agent_messages import integer, text
from sandlot.wire.frames import ProtocolViolation

MAX_BACKLOG: Final = 128  # connections accepted inside that the caller has not taken yet
# How often a listener may ask for its address again. Each time may start a process inside.
RETRIES_PER_S: Final = 2
RETRIES_BURST: Final = 5
# An older agent closes a listener shortly after its link, so the address may be taken for a moment.
MAX_REFUSALS: Final = 10


class AgentPortListener:
    """Implements ``PortListener``. Call ``listen`` first."""

    def __init__(self, link: AgentLink, address: str) -> None:
        self._link = link
        self._address = address
        self._mux: Mux | None = None
        self._stream: Stream | None = None
        self._end: asyncio.Task[Message | Data | None] | None = None  # waits for the stream's end
        self._backlog: deque[PortStream] = deque()
        self._changed = asyncio.Event()
        self._closed = False
        now = asyncio.get_running_loop().time()
        self._retries = Allowance(per_s=RETRIES_PER_S, burst=RETRIES_BURST, now=now)

    @property
    def address(self) -> str:
        return self._address

    async def listen(self) -> None:
        """Asks the agent for the address, on the link that it has now."""
        link = self._link
        mux = await (link.net() if await link.agent_has(NET_MIN_MINOR) else link.core())
        listeners = _listeners_of(mux)
        with Call(link, mux) as call:
            stream = await call.open({"op": "port.listen", "address": self._address}, end=False)
            listeners.add(stream.id, self)  # before the answer: a connection may follow it at once
            try:
                async with asyncio.timeout(ANSWER_TIMEOUT_S):
                    self._address = text(await call.next_message(), "address")
            except TimeoutError:
                listeners.remove(stream.id)
                raise LinkInterrupted(f"The sandbox did not answer within {ANSWER_TIMEOUT_S:g} s.") from None
            except BaseException:
                listeners.remove(stream.id)
                raise
            self._mux, self._stream = mux, call.detach_stream()
        self._end = asyncio.get_running_loop().create_task(stream.receive())
        self._end.add_done_callback(self._on_end)
        if self._closed:  # while the agent was asked
            await self.close()

    async def connections(self) -> AsyncIterator[PortStream]:
        try:
            while not self._closed:
                if self._backlog:
                    yield self._backlog.popleft()
                elif self._end is not None and self._end.done():
                    if not await self._go_on(self._end):
                        return
                else:
                    self._changed.clear()
                    await self._changed.wait()
        finally:
            await self.close()

    async def close(self) -> None:
        self._closed = True
        self._changed.set()
        if self._end is not None:
            self._end.cancel()
        if self._stream is not None and self._mux is not None:
            _listeners_of(self._mux).remove(self._stream.id)
            self._stream.close()
        while self._backlog:
            self._backlog.popleft().abort()

    def offer(self, mux: Mux, stream: Stream) -> None:
        """Takes a connection that the agent has accepted."""
        if len(self._backlog) >= MAX_BACKLOG:
            stream.reset("busy", "nothing accepts this listener's connections")
            return
        self._backlog.append(PortStream(self._link, mux, stream))
        self._changed.set()

    def _on_end(self, end: asyncio.Task[Message | Data | None]) -> None:
        if not end.cancelled():
            end.exception()  # _go_on raises it, unless the iteration has already stopped
        self._changed.set()

    async def _go_on(self, end: asyncio.Task[Message | Data | None]) -> bool:
        """Listens again if the link broke. Returns False if the agent has closed the listener."""
        assert self._mux is not None
        with Call(self._link, self._mux):
            try:
                if end.result() is not None:
                    raise ProtocolViolation("unexpected message from a listener")
                return False
            except LinkClosed:
                if self._link.failure is not None:
                    raise
        await self._listen_again()
        return True

    async def _listen_again(self) -> None:
        """Tries until it listens, or the sandbox is lost, or something else has the address."""
        refusals = 0
        while not self._closed:
            await asyncio.sleep(self._retries.take(1, asyncio.get_running_loop().time()))
            try:
                await self.listen()
                return
            except (LinkInterrupted, Busy):
                if self._link.failure is not None:
                    raise
            except NotFound:
                refusals += 1
                if refusals == MAX_REFUSALS:
                    raise


class _Listeners:
    """The listeners on one link. Passes each stream that the agent opens to its listener."""

    def __init__(self, mux: Mux) -> None:
        self._mux = mux
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
            listener.offer(self._mux, stream)

    def add(self, stream_id: int, listener: AgentPortListener) -> None:
        self._by_stream[stream_id] = listener

    def remove(self, stream_id: int) -> None:
        self._by_stream.pop(stream_id, None)


def _listeners_of(mux: Mux) -> _Listeners:
    if not isinstance(mux.acceptor, _Listeners):
        mux.acceptor = _Listeners(mux)
    return mux.acceptor


async def listen(link: AgentLink, address: str) -> AgentPortListener:
    listener = AgentPortListener(link, address)
    await listener.listen()
    return listener
