"""Periodic work: ends expired sessions, removes unknown sandboxes, fills pools and saves activity.

Only the reaper ends a session because of its age. So there is one place to look when a session is
gone.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping

import structlog

from sandlot.domain.errors import SandlotError
from sandlot.domain.session_states import expiry_reason
from sandlot.worker import disk as disks
from sandlot.worker.artifacts.artifacts import Artifacts
from sandlot.worker.disk import Disk
from sandlot.worker.options import WorkerOptions
from sandlot.worker.pool.readiness import LOOK_EVERY_S, EnvironmentReadiness
from sandlot.worker.pool.warm_pool import WarmPool
from sandlot.worker.sessions import responsiveness
from sandlot.worker.sessions.lifecycle import SessionLifecycle
from sandlot.worker.sessions.responsiveness import ResponsivenessMonitor
from sandlot.worker.sessions.table import MAX_ENDED
from sandlot.worker.store.database import Store
from sandlot.worker.store.sandboxes import Sandboxes
from sandlot.worker.volumes.volumes import Volumes
from sandlot.worker.workspaces import automatic
from sandlot.worker.workspaces.automatic import AutomaticSnapshots
from sandlot.worker.workspaces.seeds import Seeds
from sandlot.worker.workspaces.snapshots import Snapshots

log = structlog.get_logger("sandlot.reaper")

# Seconds between two checks of the sessions. An expiry may be late by this much.
TICK_S = 0.5
FILL_EVERY_S = 2.0
SAVE_EVERY_S = 10.0
ARTIFACTS_EVERY_S = 60.0


class Reaper:
    def __init__(
        self,
        sessions: SessionLifecycle,
        sandboxes: Sandboxes,
        pools: Mapping[str, WarmPool],
        readiness: EnvironmentReadiness,
        store: Store,
        options: WorkerOptions,
        disk: Disk,
        snapshots: Snapshots,
        seeds: Seeds,
        artifacts: Artifacts,
        volumes: Volumes,
        automatic_snapshots: AutomaticSnapshots | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._sessions = sessions
        self._disk = disk
        self._snapshots = snapshots
        self._seeds = seeds
        self._artifacts = artifacts
        self._volumes = volumes
        self._automatic = automatic_snapshots
        self._responsiveness = ResponsivenessMonitor(sessions.table)
        self._sandboxes = sandboxes
        self._pools = pools
        self._readiness = readiness
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
        await self._responsiveness.close()

    async def _run(self) -> None:
        # The sweep has its own loop: an engine that hangs must not keep sessions from expiring.
        async with asyncio.TaskGroup() as loops:
            loops.create_task(_every(TICK_S, self._expire))
            loops.create_task(_every(FILL_EVERY_S, self._fill))
            loops.create_task(_every(LOOK_EVERY_S, self._readiness.look))
            loops.create_task(_every(SAVE_EVERY_S, self._save))
            loops.create_task(_every(disks.CHECK_INTERVAL_S, self._disk.check))
            loops.create_task(_every(responsiveness.ASK_EVERY_S, self._responsiveness.check))
            # Twice per grace period, because an unknown sandbox must be seen twice.
            loops.create_task(_every(max(0.5, self._options.orphan_grace_s / 2), self._sweep))
            loops.create_task(_every(ARTIFACTS_EVERY_S, self._artifacts.sweep))
            if self._automatic is not None:
                loops.create_task(_every(automatic.LOOK_EVERY_S, self._automatic.check))

    async def _expire(self) -> None:
        now = self._clock()
        for live_session in self._sessions.table:
            if expiry_reason(live_session.session, now) is not None and live_session.expiry_check is None:
                task = asyncio.create_task(
                    self._expire_one(live_session.session.id, self._sessions.expire(live_session))
                )
                self._expiring.add(task)
                task.add_done_callback(self._expiring.discard)

    async def _expire_one(self, session_id: str, expiry: Awaitable[None]) -> None:
        try:
            await expiry
        except SandlotError as error:
            log.warning(
                "cannot remove an expired session's sandbox yet; will retry",
                session=session_id,
                error=error.message,
            )

    async def _fill(self) -> None:
        for pool in self._pools.values():
            pool.fill()

    async def _save(self) -> None:
        await self._sessions.save_activity()
        await self._store.scrub()

    async def _sweep(self) -> None:
        await self._sandboxes.sweep(self._clock())
        await self._seeds.sweep()
        await self._volumes.sweep()
        await self._snapshots.sweep(self._sandboxes.first_workspaces, self._options.orphan_grace_s)
        before = self._clock() - self._options.remember_ended_s
        self._sessions.table.forget_ended(before)
        await self._store.forget_ended(before, keep=MAX_ENDED)


async def _every(seconds: float, work: Callable[[], Awaitable[None]]) -> None:
    while True:
        await asyncio.sleep(seconds)
        try:
            await work()
        except SandlotError as error:
            log.warning("background cleanup failed; will retry", error=error.message)
        except Exception:
            # The next round tries again. A reaper that one failure stopped would reap nothing more.
            log.exception("background cleanup failed; will retry")
