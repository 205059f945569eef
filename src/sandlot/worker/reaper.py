"""What is done by the clock: sessions whose time is over, sandboxes that nobody knows, pools, and the memory
of it.

One loop. Nothing else ends a session by its age, so there is one place to look when one is gone.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping

import structlog

from sandlot.domain.errors import SandlotError
from sandlot.domain.session import due
from sandlot.worker import disk as disks
from sandlot.worker import pulse
from sandlot.worker.disk import Disk
from sandlot.worker.options import WorkerOptions
from sandlot.worker.pool import Pool
from sandlot.worker.pulse import Pulse
from sandlot.worker.sandboxes import Sandboxes
from sandlot.worker.sessions import Sessions
from sandlot.worker.store import Store
from sandlot.worker.table import MAX_ENDED

log = structlog.get_logger("sandlot.reaper")

# Seconds between two looks at the sessions: what an expiry may be late.
TICK_S = 0.5
FILL_EVERY_S = 2.0
SAVE_EVERY_S = 10.0


class Reaper:
    def __init__(
        self,
        sessions: Sessions,
        sandboxes: Sandboxes,
        pools: Mapping[str, Pool],
        store: Store,
        options: WorkerOptions,
        disk: Disk,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._sessions = sessions
        self._disk = disk
        self._pulse = Pulse(sessions.table)
        self._sandboxes = sandboxes
        self._pools = pools
        self._store = store
        self._options = options
        self._clock = clock
        self._expiring: set[asyncio.Task[None]] = set()
        self._loop: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._loop = asyncio.create_task(self._run(), name="reaper")

    async def close(self) -> None:
        tasks = set(self._expiring)
        if self._loop is not None:
            self._loop.cancel()
            tasks.add(self._loop)
        if tasks:
            await asyncio.wait(tasks)
        await self._pulse.close()

    async def _run(self) -> None:
        # The sweep has a loop of its own: an engine that hangs must not keep sessions from expiring.
        async with asyncio.TaskGroup() as loops:
            loops.create_task(_every(TICK_S, self._expire))
            loops.create_task(_every(FILL_EVERY_S, self._fill))
            loops.create_task(_every(SAVE_EVERY_S, self._save))
            loops.create_task(_every(disks.LOOK_EVERY_S, self._disk.look))
            loops.create_task(_every(pulse.ASK_EVERY_S, self._pulse.look))
            # Two sightings, one grace period apart at least.
            loops.create_task(_every(max(0.5, self._options.orphan_grace_s / 2), self._sweep))

    async def _expire(self) -> None:
        now = self._clock()
        for live in self._sessions.table:
            if due(live.session, now) is not None and live.deciding is None:
                task = asyncio.create_task(self._expire_one(live.session.id, self._sessions.expire(live)))
                self._expiring.add(task)
                task.add_done_callback(self._expiring.discard)

    async def _expire_one(self, session_id: str, expiry: Awaitable[None]) -> None:
        try:
            await expiry
        except SandlotError as error:
            log.warning("an expired session's sandbox stays for now", session=session_id, error=error.message)

    async def _fill(self) -> None:
        for pool in self._pools.values():
            pool.fill()

    async def _save(self) -> None:
        await self._sessions.save_activity()
        await self._store.scrub()

    async def _sweep(self) -> None:
        await self._sandboxes.sweep(self._clock())
        before = self._clock() - self._options.remember_ended_s
        self._sessions.table.forget_ended(before)
        await self._store.forget_ended(before, keep=MAX_ENDED)


async def _every(seconds: float, work: Callable[[], Awaitable[None]]) -> None:
    while True:
        await asyncio.sleep(seconds)
        try:
            await work()
        except SandlotError as error:
            log.warning("reaper", error=error.message)
        except Exception:
            # The next round tries again; a reaper that dies of one failure would let everything pile up.
            log.exception("reaper")
