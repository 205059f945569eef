"""Counts the commands that tenants and keys run at once, for all workers of a fleet together."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final
from weakref import WeakValueDictionary

import structlog

from sandlot.domain.background_tasks import BackgroundTasks
from sandlot.domain.callers.limits import Allowance, too_many_execs
from sandlot.domain.callers.slots import SlotsInMemory
from sandlot.domain.errors import SandlotError
from sandlot.fleet.redis.calls import ScriptCalls
from sandlot.fleet.redis.lua import Script, load_scripts

log = structlog.get_logger("sandlot.slots")

_SCRIPTS: Final = Path(__file__).parent / "scripts"
# A slot that its worker does not renew is free after this time: the worker is gone.
LIFE_S: Final = 60.0
RENEW_EVERY_S: Final = 15.0
# Slots in one call, so that Redis is never busy for long.
MOST_IN_A_CALL: Final = 500
# Freed slots to tell Redis of. While Redis is away, the oldest are forgotten: they end by themselves.
MOST_RELEASED: Final = 10_000
# Seconds without Redis after it failed. Otherwise each command would wait for its deadline.
ALONE_FOR_S: Final = 2.0
# For how long a refusal holds without asking again: a flood must not keep the directory's calls waiting.
REFUSED_FOR_S: Final = 0.05
# Refusals to remember, before those in the past are forgotten.
MOST_REFUSED: Final = 1000

Names = tuple[str, ...]
Slot = tuple[str, str]  # of a holder, for a command


class RedisSlots:
    """Implements ``Slots``. ``calls`` are the directory's. Open it before use.

    The worker counts its own commands in memory too. While Redis is away, that count alone decides: running
    sandboxes must go on. So a caller may then have its limit on each worker.
    """

    def __init__(self, calls: ScriptCalls, worker_id: str) -> None:
        self._calls = calls
        self._worker_id = worker_id
        scripts = load_scripts(_SCRIPTS, refused_when_full={"take"})
        self._take, self._renew = scripts["take"], scripts["renew"]
        self._own = SlotsInMemory()
        self._released: list[Slot] = []  # and Redis does not know it yet
        self._news = asyncio.Event()
        self._alone_until = 0.0
        self._turns: WeakValueDictionary[Names, asyncio.Lock] = WeakValueDictionary()
        self._refused: dict[Names, tuple[float, Allowance]] = {}  # until when, and who has no slot left
        self._background = BackgroundTasks()

    def open(self) -> None:
        self._background.start(self._keep_renewing(), "renew slots")
        self._background.start(self._keep_releasing(), "release slots")

    async def close(self) -> None:
        """The slots stay with their commands, which the next process of this worker takes over."""
        await self._background.cancel()

    async def take(self, name: str, allowances: Sequence[Allowance]) -> bool:
        names = tuple(allowance.holder for allowance in allowances)
        # One at a time for each caller: see REFUSED_FOR_S. And whoever asks for the same command again
        # meanwhile must not take it for one that has its slots.
        async with self._turns.setdefault(names, asyncio.Lock()):
            if not self._own.needs(name, allowances):
                return False
            try:
                full = await self._full(name, names, allowances)
            except BaseException:
                self._free(name, names)  # cancelled: Redis may have given them
                raise
            if full is not None:
                raise too_many_execs(full)
            self._own.resume(name, names)
            return True

    async def _full(self, name: str, names: Names, allowances: Sequence[Allowance]) -> Allowance | None:
        """The allowance that has no slot left for the command. None if it has got its slots."""
        now = time.monotonic()
        if now < self._alone_until:
            return None
        refused = self._refused.get(names)
        if refused is not None and now < refused[0]:
            return refused[1]
        wanted = [(allowance.holder, allowance.limits.execs) for allowance in allowances]
        asked = {"command": f"{self._worker_id}/{name}", "holders": wanted}
        try:
            (place,) = await self._call(self._take, asked)
        except SandlotError:
            # Once more: one answer that was late, on a busy machine, must not suspend the limit.
            try:
                (place,) = await self._call(self._take, asked)
            except SandlotError as error:
                self._be_alone(error)
                return None
        if not place:
            self._refused.pop(names, None)
            return None
        full: Allowance = allowances[place - 1]
        if len(self._refused) > MOST_REFUSED:
            self._refused = {known: one for known, one in self._refused.items() if one[0] > now}
        self._refused[names] = time.monotonic() + REFUSED_FOR_S, full
        return full

    def resume(self, name: str, holders: Sequence[str]) -> None:
        """Redis learns of it with the next renewal."""
        self._own.resume(name, holders)

    def release(self, name: str) -> None:
        self._free(name, self._own.released(name))

    def _free(self, name: str, holders: Sequence[str]) -> None:
        self._released += [(holder, f"{self._worker_id}/{name}") for holder in holders]
        del self._released[:-MOST_RELEASED]
        if self._released:
            self._news.set()

    # --- Redis --------------------------------------------------------------------------------

    async def _call(self, script: Script, arguments: dict[str, Any]) -> list[Any]:
        """Each call also tells Redis of freed slots."""
        released, self._released = self._released[:MOST_IN_A_CALL], self._released[MOST_IN_A_CALL:]
        common = {"released": released, "life_ms": round(LIFE_S * 1000)}
        try:
            answer = await self._calls(script, arguments | common)
        except BaseException:
            self._released[:0] = released
            raise
        if self._alone_until:
            log.info("counting running commands together with the other workers again")
            self._alone_until = 0.0
        return answer

    def _be_alone(self, error: SandlotError) -> None:
        if not self._alone_until:
            log.warning("counting running commands without the other workers", error=error.message)
        self._alone_until = time.monotonic() + ALONE_FOR_S

    async def _keep_releasing(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            await self._told(held=())

    async def _keep_renewing(self) -> None:
        while True:
            held = [
                (holder, f"{self._worker_id}/{name}")
                for name, holders in self._own.items()
                for holder in holders
            ]
            for first in range(0, len(held), MOST_IN_A_CALL):
                await self._told(held[first : first + MOST_IN_A_CALL])
            await asyncio.sleep(RENEW_EVERY_S)

    async def _told(self, held: Sequence[Slot]) -> None:
        """Tell Redis what is held and what is free, until it is told."""
        while True:
            try:
                await self._call(self._renew, {"held": held})
            except SandlotError as error:
                self._be_alone(error)
                await asyncio.sleep(ALONE_FOR_S)
            else:
                if not self._released:
                    return
                held = ()
