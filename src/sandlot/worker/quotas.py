"""Limits of tenants and keys on a server of its own. In a fleet, the directory checks them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sandlot.domain.callers.limits import (
    AllowancesOf,
    Use,
    check_room,
    too_many_creates,
    total_use,
    use_of,
)
from sandlot.domain.callers.principal import Principal
from sandlot.domain.callers.rates import RatesInMemory
from sandlot.domain.session import Session
from sandlot.worker.sessions.table import SessionTable


class Quotas:
    def __init__(self, table: SessionTable, allowances: AllowancesOf) -> None:
        self._table = table
        self._allowances = allowances
        self._opening: dict[str, Session] = {}  # counted, but perhaps not in the table yet
        self._rates = RatesInMemory()

    def use(self, holder: str) -> Use:
        sessions = {live_session.session.id: live_session.session for live_session in self._table}
        return total_use(holder, (sessions | self._opening).values())

    @contextmanager
    def counted(self, principal: Principal, session: Session) -> Iterator[None]:
        """Count a new session until it is in the table. Raises ``Busy`` at a limit of the caller.

        Nothing is awaited between the check and the count, so parallel creates cannot exceed a limit.
        """
        allowances = self._allowances(principal)
        for allowance in allowances:
            check_room(allowance, self.use(allowance.holder), use_of(session.limits))
        limited = [(one, rate) for one in allowances if (rate := one.creates) is not None]
        after = self._rates.take_now([rate for _, rate in limited])
        for (allowance, _), taken in zip(limited, after, strict=True):
            if taken.wait_s:
                raise too_many_creates(allowance, taken.wait_s)
        self._opening[session.id] = session
        try:
            yield
        finally:
            del self._opening[session.id]
