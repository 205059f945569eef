"""Counts calls against the rates of tenants and keys, for all processes of a fleet together."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final
from weakref import WeakValueDictionary

import structlog

from sandlot.domain.callers.rates import Rate, RatesInMemory, Taken
from sandlot.domain.errors import SandlotError
from sandlot.fleet.redis.calls import ScriptCalls
from sandlot.fleet.redis.lua import GCRA, load_scripts, pack_rate

log = structlog.get_logger("sandlot.rates")

_SCRIPTS: Final = Path(__file__).parent / "scripts"
# Seconds without Redis after it failed. Otherwise each call would wait for its deadline.
ALONE_FOR_S: Final = 2.0
# Refusals to remember, before those in the past are forgotten.
MAX_REFUSED: Final = 1000

Names = tuple[str, ...]


class RedisRates:
    """Implements ``Rates``. ``calls`` are the directory's.

    A flood must not keep the directory's own calls waiting. So each caller has one call to Redis under way
    at a time, and after a refusal none until the time that Redis has named.

    While Redis is away, each process counts for itself: running sandboxes must go on. So a caller that uses
    n processes may call up to n times as often until Redis is back.
    """

    def __init__(self, calls: ScriptCalls) -> None:
        self._calls = calls
        self._take = load_scripts(_SCRIPTS, before=GCRA, refused_when_full={"take"})["take"]
        self._own = RatesInMemory()
        self._alone_until = 0.0
        self._turns: WeakValueDictionary[Names, asyncio.Lock] = WeakValueDictionary()
        self._refused: dict[Names, tuple[float, Sequence[Taken]]] = {}  # until when, and what Redis said

    async def take(self, rates: Sequence[Rate]) -> Sequence[Taken]:
        names = tuple(rate.name for rate in rates)
        async with self._turn(names):
            now = time.monotonic()
            if now < self._alone_until:
                return self._own.take_now(rates)
            until, said = self._refused.get(names, (0.0, ()))
            if now < until:
                return [_later(taken, until - now) for taken in said]
            taken = await self._ask(rates)
            wait_s = max(after.wait_s for after in taken)
            if wait_s:
                self._refuse(names, time.monotonic() + wait_s, taken)
            return taken

    def _turn(self, names: Names) -> asyncio.Lock:
        """The lock of this caller. It lasts as long as a call holds it or waits for it."""
        lock = self._turns.get(names)
        if lock is None:
            lock = self._turns[names] = asyncio.Lock()
        return lock

    def _refuse(self, names: Names, until: float, said: Sequence[Taken]) -> None:
        if len(self._refused) > MAX_REFUSED:
            now = time.monotonic()
            self._refused = {known: one for known, one in self._refused.items() if one[0] > now}
        self._refused[names] = until, said

    async def _ask(self, rates: Sequence[Rate]) -> Sequence[Taken]:
        try:
            answer = await self._calls(self._take, {"rates": [pack_rate(rate) for rate in rates]})
        except SandlotError as error:
            if not self._alone_until:
                log.warning("counting calls without the other processes", error=error.message)
            self._alone_until = time.monotonic() + ALONE_FOR_S
            return self._own.take_now(rates)
        if self._alone_until:
            log.info("counting calls together with the other processes again")
            self._alone_until = 0.0
        return [Taken(wait / 1e6, left, full / 1e6) for wait, left, full in answer]


def _later(taken: Taken, wait_s: float) -> Taken:
    """What Redis said, told again until the time that it has named."""
    return Taken(wait_s if taken.wait_s else 0.0, taken.left, taken.full_in_s)
