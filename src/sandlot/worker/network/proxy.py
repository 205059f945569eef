"""The proxy of one session: the only way from its sandbox to the network.

It speaks HTTP/1.1 on byte streams from inside. Plain requests are read and written anew. For https a program
asks for a tunnel (CONNECT), and the name in its TLS must be the host that it asked for.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final

from sandlot.domain.network.decisions import Denied
from sandlot.domain.network.hosts import Target
from sandlot.domain.network.session_egress import SessionEgress
from sandlot.domain.network.status import Traffic
from sandlot.providers.base import ByteStream, PortListener
from sandlot.worker.network.broker.broker import Broker
from sandlot.worker.network.conversation import Conversation
from sandlot.worker.network.dialer import Dialer
from sandlot.worker.network.forwarding import ForwardedConnection
from sandlot.worker.network.gate import Gate
from sandlot.worker.network.options import ProxyOptions
from sandlot.worker.network.streams import BROKEN

# Connections above the cap that get an answer at once. Further ones are closed without.
MAX_REFUSED_AT_ONCE: Final = 32

# A forward's program does not speak HTTP.
_REFUSE_SILENTLY: Final = b""
_TOO_MANY: Final = b"This sandbox has too many connections at once. Close some, then retry.\n"
_REFUSAL: Final = (
    b"HTTP/1.1 503 Too many connections\r\ncontent-type: text/plain\r\nconnection: close\r\n"
    b"content-length: %d\r\n\r\n%s" % (len(_TOO_MANY), _TOO_MANY)
)


class EgressProxy:
    """``egress`` and ``report``: see ``Gate``. ``broker``: the session's gateways and secrets, if any; a new
    one holds for new connections."""

    def __init__(
        self,
        egress: Callable[[], SessionEgress],
        dialer: Dialer,
        options: ProxyOptions,
        report: Callable[[Denied], None] = lambda _: None,
        clock: Callable[[], float] = time.time,
        broker: Broker | None = None,
    ) -> None:
        self._gate = Gate(egress, dialer, options, report, clock)
        self._options = options
        self.broker = broker
        self._open: set[Conversation | ForwardedConnection] = set()
        self._refusing = 0
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def traffic(self) -> Traffic:
        return self._gate.meter.snapshot()

    def denied_since(self, at: float) -> tuple[Denied, ...]:
        """The different denials since a time, oldest first: those of a command since it began."""
        return self._gate.denials.since(at)

    def recheck(self) -> None:
        """End the tunnels and requests that are no longer allowed. Call it when the policy has changed."""
        for conversation in self._open:
            if conversation.target is not None and not self._gate.permits(conversation.target):
                conversation.stop()

    def end_connections_to(self, target: Target) -> None:
        """End the forwarded connections to a target."""
        for connection in self._open:
            if isinstance(connection, ForwardedConnection) and connection.target == target:
                connection.stop()

    async def serve_listener(self, listener: PortListener) -> None:
        """Serve the connections of a listener until it closes. Those that are open go on."""
        await self._serve_all(listener, self.serve)

    async def serve_forward(self, listener: PortListener, target: Target) -> None:
        """The same for a listener whose connections lead to one target."""

        async def serve(stream: ByteStream) -> None:
            await self._serve(
                stream,
                lambda: ForwardedConnection(stream, target, self._gate, self._options),
                _REFUSE_SILENTLY,
            )

        await self._serve_all(listener, serve)

    async def _serve_all(
        self, listener: PortListener, serve: Callable[[ByteStream], Coroutine[Any, Any, None]]
    ) -> None:
        async for stream in listener.connections():
            task = asyncio.create_task(serve(stream), name="egress connection")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def serve(self, stream: ByteStream) -> None:
        """Serve one connection until its end."""
        await self._serve(
            stream, lambda: Conversation(stream, self._gate, self._options, self.broker), _REFUSAL
        )

    async def _serve(
        self, stream: ByteStream, begin: Callable[[], Conversation | ForwardedConnection], refusal: bytes
    ) -> None:
        meter = self._gate.meter
        meter.add(connections=1)
        if meter.full:
            await self._refuse(stream, refusal)
            return
        conversation = begin()
        self._open.add(conversation)
        meter.add(open=1)
        try:
            await conversation.run()
        finally:
            meter.add(open=-1)
            self._open.discard(conversation)

    def stop(self) -> list[asyncio.Task[None]]:
        """Begin to end all connections of listeners. Returns the tasks that end with them."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        return tasks

    async def close(self) -> None:
        """End all connections of listeners."""
        await asyncio.gather(*self.stop(), return_exceptions=True)

    async def _refuse(self, stream: ByteStream, refusal: bytes) -> None:
        self._gate.meter.add(refused=1)
        if not refusal or self._refusing >= MAX_REFUSED_AT_ONCE:
            stream.abort()
            return
        self._refusing += 1
        try:
            async with asyncio.timeout(self._options.last_bytes_s):
                await stream.send(refusal)
            await stream.close(self._options.last_bytes_s)
        except (TimeoutError, *BROKEN):
            pass
        finally:
            stream.abort()
            self._refusing -= 1
