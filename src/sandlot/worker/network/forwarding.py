"""One connection to a forwarded port: it leads to one host outside, by the session's policy."""

from __future__ import annotations

import asyncio
from functools import partial

from sandlot.domain.network.hosts import Target
from sandlot.providers.base import ByteStream
from sandlot.worker.network.dialer import EgressDenied
from sandlot.worker.network.gate import Gate, bytes_used_up
from sandlot.worker.network.meter import BytesUsedUp
from sandlot.worker.network.options import ProxyOptions
from sandlot.worker.network.streams import BROKEN, HostProblem
from sandlot.worker.network.tunnel import TunnelDenied, read_opening, relay


class ForwardedConnection:
    """A tunnel that needs no CONNECT. A denial closes it: the program speaks something that we do not."""

    def __init__(self, stream: ByteStream, target: Target, gate: Gate, options: ProxyOptions) -> None:
        self.target: Target | None = target
        self._leads_to = target
        self._stream = stream
        self._gate = gate
        self._options = options
        self._limit = asyncio.timeout(None)
        self._ends_at = asyncio.get_running_loop().time() + options.total_s
        self._stopped = False

    async def run(self) -> None:
        try:
            async with self._limit:
                self._touch()
                await self._relay()
        except (EgressDenied, TunnelDenied) as error:
            self._gate.record(error.denied)
        except BytesUsedUp:
            self._gate.record(bytes_used_up(self._leads_to))
        except (TimeoutError, HostProblem, *BROKEN):
            pass  # the program sees a closed connection
        finally:
            self._stream.abort()

    def stop(self) -> None:
        """End at once: the target is no longer allowed."""
        self._stopped = True
        if not self._limit.expired():
            self._limit.reschedule(asyncio.get_running_loop().time())

    async def _relay(self) -> None:
        target = self._leads_to
        allowed = self._gate.decide(target)
        host = await self._gate.connect(target)
        try:
            # Where the policy names the port, the host may speak first, as some databases do.
            opening = partial(read_opening, self._stream, b"", target, allowed)
            if not allowed.any_protocol:
                first = await opening()
                await relay(self._stream, host, partial(_given, first), self._gate.meter, self._touch)
            else:
                await relay(self._stream, host, opening, self._gate.meter, self._touch)
        finally:
            host.abort()

    def _touch(self) -> None:
        if not self._stopped and not self._limit.expired():
            now = asyncio.get_running_loop().time()
            self._limit.reschedule(min(now + self._options.idle_s, self._ends_at))


async def _given(data: bytes) -> bytes:
    return data
