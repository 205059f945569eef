"""What a session of the fake may reach."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from sandlot.domain.environment import Recipe
from sandlot.domain.network.decisions import Denied
from sandlot.domain.network.denials import DenialLog
from sandlot.domain.network.hosts import Target
from sandlot.domain.network.policy import DEFAULT_CEILING
from sandlot.domain.network.session_egress import SessionEgress
from sandlot.domain.network.status import Forward, NetworkChange, NetworkStatus, Traffic, changed
from sandlot.domain.session import CreateSession


class FakeNetwork:
    def __init__(self, recipe: Recipe, request: CreateSession, clock: Callable[[], float]) -> None:
        egress = SessionEgress(recipe.network, ceiling=DEFAULT_CEILING)
        self.egress = egress if request.network is None else egress.asking(request.network)
        self.forwards: tuple[Forward, ...] = ()
        self.report: Callable[[Denied], None] = lambda denied: None
        self._clock = clock
        self._traffic = Traffic()
        self._denials = DenialLog()

    def connect(self, target: Target) -> Denied | None:
        """Why a connection is denied. None: it is allowed, and there is nothing that it could lead to."""
        now = self._clock()
        decision = self.egress.decide(target.host, target.port, now)
        self._traffic.connections += 1
        if not isinstance(decision, Denied):
            return None
        self._traffic.denied += 1
        if self._denials.add(decision, now):
            self.report(decision)
        return decision

    def change(self, change: NetworkChange) -> None:
        self.egress, self.forwards = changed(self.egress, self.forwards, change, self._clock())

    def status(self) -> NetworkStatus:
        traffic = replace(self._traffic)
        return NetworkStatus.of(self.egress, self.forwards, traffic, self._denials.since(0), self._clock())
