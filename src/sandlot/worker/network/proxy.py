"""The proxy of one session: the only way from its sandbox to the network.

It speaks HTTP/1.1 on byte streams from inside. Plain requests are read and written anew. For https a program
asks for a tunnel (CONNECT), and the name in its TLS must be the host that it asked for.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

from sandlot.domain.network.decisions import Denied
from sandlot.domain.network.session_egress import SessionEgress
from sandlot.providers.base import ByteStream, PortListener
from sandlot.worker.network.broker.broker import Broker
from sandlot.worker.network.conversation import Conversation
from sandlot.worker.network.dialer import Dialer
from sandlot.worker.network.gate import Gate
from sandlot.worker.network.meter import Traffic
from sandlot.worker.network.options import ProxyOptions
from sandlot.worker.network.streams import BROKEN, finish

# Connections above the cap that get an answer at once. Further ones are closed without.
MAX_REFUSED_AT_ONCE: Final = 32

_TOO_MANY: Final = b"This sandbox has too many connections at once. Close some, then retry.\n"
_REFUSAL: Final = (
    b"HTTP/1.1 503 Too many connections\r\ncontent-type: text/plain\r\nconnection: close\r\n"
    b"content-length: %d\r\n\r\n%s" % (len(_TOO_MANY), _TOO_MANY)
)


class EgressProxy:
    """``egress`` and ``report``: see ``Gate``. ``broker``: the session's gateways and secrets, if any."""

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
        self._broker = broker
        self._open: set[Conversation] = set()
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

    async def serve_listener(self, listener: PortListener) -> None:
        """Serve the connections of a listener until it closes. Those that are open go on."""
        async for stream in listener.connections():
            task = asyncio.create_task(self.serve(stream), name="egress connection")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def serve(self, stream: ByteStream) -> None:
        """Serve one connection until its end."""
        traffic = self._gate.meter.traffic
        traffic.connections += 1
        if self._gate.meter.full:
            await self._refuse(stream)
            return
        conversation = Conversation(stream, self._gate, self._options, self._broker)
        self._open.add(conversation)
        traffic.open += 1
        try:
            await conversation.run()
        finally:
            traffic.open -= 1
            self._open.discard(conversation)

    async def close(self) -> None:
        """End all connections of listeners."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _refuse(self, stream: ByteStream) -> None:
        self._gate.meter.traffic.refused += 1
        if self._refusing >= MAX_REFUSED_AT_ONCE:
            await stream.close()
            return
        self._refusing += 1
        try:
            async with asyncio.timeout(self._options.last_bytes_s):
                await stream.send(_REFUSAL)
            await finish(stream, self._options.last_bytes_s)
        except (TimeoutError, *BROKEN):
            await stream.close()
        finally:
            self._refusing -= 1
