"""Decides and makes the connections of one session, and keeps what was denied."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from sandlot.domain.network.decisions import Allowed, Denied
from sandlot.domain.network.denials import DenialLog
from sandlot.domain.network.hosts import Target
from sandlot.domain.network.session_egress import SessionEgress
from sandlot.worker.network.dialer import Dialer, EgressDenied
from sandlot.worker.network.meter import BytesUsedUp, Meter
from sandlot.worker.network.names import reason_of
from sandlot.worker.network.options import ProxyOptions
from sandlot.worker.network.streams import HostProblem, HostStream


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
        self.meter = Meter(lambda: egress().caps, dialer.turns, dialer.total)
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
        self._check_bytes(target)
        return decision

    def decide_declared(self, target: Target) -> None:
        """For an upstream that the operator named: no rule needs to allow it, and one that denies it wins."""
        if (denied := self._egress().denial_of(target)) is not None:
            raise EgressDenied(denied)
        self._check_bytes(target)

    async def connect(self, target: Target, *, tls: bool = False, declared: bool = False) -> HostStream:
        """See ``Dialer.connect``. Call ``decide`` or ``decide_declared`` first.

        Raises ``EgressDenied``, or ``HostProblem`` if the host cannot be reached.
        """
        try:
            host = await self._dialer.connect(
                target, self._egress().denial_of_address, self._resolving, tls=tls, declared=declared
            )
        except TimeoutError:
            raise HostProblem(504, f"{target} did not answer in time.") from None
        except OSError as error:
            raise HostProblem(502, f"{target} cannot be reached: {reason_of(error)}.") from None
        self.meter.add(requests=1)
        return host

    async def metered(self, target: Target, passing: Awaitable[None]) -> None:
        try:
            await passing
        except BytesUsedUp:
            self.record(bytes_used_up(target))
            raise

    def record(self, denied: Denied) -> None:
        self.meter.add(denied=1)
        if self.denials.add(denied, self._clock()):
            self._report(denied)

    def _check_bytes(self, target: Target) -> None:
        try:
            self.meter.check_bytes()
        except BytesUsedUp:
            raise EgressDenied(bytes_used_up(target)) from None


def bytes_used_up(target: Target) -> Denied:
    return Denied(
        target=str(target),
        rule="caps: bytes",
        why="The session has sent and received as many bytes as it may.",
        ask="Ask the operator for a higher cap, or use a new session.",
    )
