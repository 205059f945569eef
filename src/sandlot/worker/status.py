"""``WorkerStatus``: whether a worker takes calls and new sessions, and what its operator should know."""

from __future__ import annotations

from collections.abc import Mapping

from sandlot import __version__
from sandlot.domain.capacity.machine import Condition
from sandlot.domain.errors import Unavailable
from sandlot.domain.service import ServiceHealth
from sandlot.worker.assembly import WorkerParts
from sandlot.worker.health_problems import (
    broken_environments,
    disk_problems,
    export_problems,
    silent_sandboxes,
)
from sandlot.worker.options import WorkerOptions
from sandlot.worker.refusals import draining, no_room_on_disk, stopping
from sandlot.worker.registrar import Registrar


class WorkerStatus:
    """``draining``: an operator wants no new sessions here. ``stopping``: the process is about to end."""

    def __init__(
        self,
        parts: WorkerParts,
        options: WorkerOptions,
        registrar: Registrar,
    ) -> None:
        self._parts = parts
        self._options = options
        self._registrar = registrar
        self.open = False
        self.closed = False
        self.stopping = False
        self.draining = False

    async def check_creates(self) -> Unavailable | None:
        """The error for new sessions if the worker takes none now, else None.

        Raises if it does not even look for existing sessions.
        """
        if self.closed or not self.open:
            raise stopping()
        if self._parts.disk.problem is not None:
            await self._parts.disk.check()  # it may have room again
        return self._refusal

    @property
    def _refusal(self) -> Unavailable | None:
        if self.stopping:
            return stopping()
        if self.draining:
            return draining()
        problem = self._parts.disk.problem
        return None if problem is None else no_room_on_disk(problem)

    def room(self) -> Mapping[str, tuple[int, int]]:
        """Per environment: warm sandboxes that are ready, and sessions that still fit in total."""
        if not self.open or self._refusal is not None:
            return dict.fromkeys(self._parts.pools, (0, 0))
        return self._parts.capacity.room(self._parts.pools, self._parts.environments.recipes)

    def condition(self) -> Condition:
        """The machine's use and its problems."""
        broken = broken_environments(self._parts.pools)
        silent = silent_sandboxes(self._parts.sessions.table)
        copies = self._parts.artifacts.copies
        unsaved = export_problems(self._parts.exports, self._parts.automatic, copies)
        problems = (*self._disk_problems, *broken, *silent, *unsaved)
        return Condition(self._parts.capacity.use, problems, self._parts.readiness.now())

    def health(self) -> ServiceHealth:
        ready = self.open and not self.stopping and self._registrar.joined
        return ServiceHealth(
            ready=ready,
            creates=ready and not self.draining and not self._disk_problems,
            worker_id=self._options.worker_id,
            version=__version__,
            active_sessions=len(self._parts.sessions.table),
            calls_under_way=self._parts.sessions.calls,
            pools={name: pool.stats() for name, pool in self._parts.pools.items()},
            problems=(*self._own_problems(), *self.condition().problems),
            history=self._parts.history.figures,
            recordings=self._parts.history.recordings.figures,
            # Not the sum: all environments share the same free room.
            free=max((free for _, free in self.room().values()), default=0),
            machine=self._parts.capacity.use,
        )

    @property
    def _disk_problems(self) -> tuple[str, ...]:
        return disk_problems(self._parts.disk.problem, self._parts.pools.values())

    def _own_problems(self) -> tuple[str, ...]:
        if self.stopping:
            return ("stopping",)
        fleet = self._registrar.problem
        return (*(("draining",) if self.draining else ()), *(() if fleet is None else (fleet,)))
