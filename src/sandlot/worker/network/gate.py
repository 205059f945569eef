"""Decides and makes the connections of one session, and keeps what was denied."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from sandlot.domain.network.decisions import Allowed, Denied
from sandlot.domain.network.denials import DenialLog
from sandlot.domain.network.hosts import Target
from sandlot.domain.network.session_egress import SessionEgress
from sandlot.worker.network.dialer import Dialer, EgressDenied
from sandlot.worker.network.meter import BytesUsedUp, Meter
from sandlot.worker.network.options import ProxyOptions
from sandlot.worker.network.streams import HostStream


class Gate:
    """``egress``: what the session may reach now; asked for each connection, so a change holds at once.
    ``report``: hears of denials, of equal and of many ones only now and then.
    """

    def __init__(
        self,
        egress: Callable[[], SessionEgress],
        dialer: Dialer,
        options: ProxyOptions,
        report: Callable[[Denied], None],
        clock: Callable[[], float],
    ) -> None:
        self.meter = Meter(lambda: egress().caps)
        self.denials = DenialLog()
        self._egress = egress
        self._dialer = dialer
        self._report = report
        self._clock = clock
        self._resolving = asyncio.Semaphore(options.resolving)

    def permits(self, target: Target) -> bool:
        return isinstance(self._egress().decide(target.host, target.port, self._clock()), Allowed)

    def decide(self, target: Target) -> Allowed:
        decision = self._egress().decide(target.host, target.port, self._clock())
        if isinstance(decision, Denied):
            raise EgressDenied(decision)
        try:
            self.meter.check_bytes()
        except BytesUsedUp:
            raise EgressDenied(bytes_used_up(target)) from None
        return decision

    async def connect(self, target: Target) -> HostStream:
        """Raises what ``Dialer.connect`` raises. Call ``decide`` first."""
        host = await self._dialer.connect(target, self._egress().denial_of_address, self._resolving)
        self.meter.traffic.requests += 1
        return host

    def record(self, denied: Denied) -> None:
        self.meter.traffic.denied += 1
        if self.denials.add(denied, self._clock()):
            self._report(denied)


def bytes_used_up(target: Target) -> Denied:
    return Denied(
        target=str(target),
        rule="caps: bytes",
        why="The session has sent and received as many bytes as it may.",
        ask="Ask the operator for a higher cap, or use a new session.",
    )
