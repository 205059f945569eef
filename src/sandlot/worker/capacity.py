"""How much more this worker's machine can take: admits sessions, and tells a fleet how many fit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from sandlot.domain.capacity.limits import Limits
from sandlot.domain.capacity.machine import (
    MachineUse,
    Resources,
    allocatable,
    check_fits_machine,
    count_fitting,
    shortage,
    total_limits,
)
from sandlot.domain.environment import ProviderName, Recipe
from sandlot.domain.errors import Unavailable
from sandlot.domain.session import Session, SessionState
from sandlot.worker.disk import Disk
from sandlot.worker.options import WorkerOptions
from sandlot.worker.pool.warm_pool import WarmPool
from sandlot.worker.sessions.table import SessionTable


class Capacity:
    """``recipes``: the worker's own, which say what runs on its machine and what elsewhere."""

    def __init__(
        self, options: WorkerOptions, table: SessionTable, disk: Disk, recipes: Mapping[str, Recipe]
    ) -> None:
        self._recipes = recipes
        self._options = options
        self._table = table
        self._disk = disk
        self._total = None if options.machine is None else allocatable(options.machine, options.overcommit)
        self._reserved: dict[str, Limits] = {}  # for sessions that are about to get a sandbox

    @property
    def use(self) -> MachineUse | None:
        """What the machine's sandboxes use.

        None if its size is unknown: then only sessions are counted.
        """
        if self._total is None:
            return None
        return MachineUse(self._total, total_limits(self._allocated_limits()), self._disk.free_bytes)

    def _allocated_limits(self) -> Iterator[Limits]:
        """The limits of all sandboxes.

        A lost or hibernated session has none; giving it one reserves room again.
        """
        yield from self._reserved.values()
        for live_session in self._table:
            session = live_session.session
            if session.state is SessionState.ACTIVE and self._is_here(session.environment):
                yield session.limits

    def _is_here(self, environment: str) -> bool:
        recipe = self._recipes.get(environment)
        return recipe is None or recipe.environment.provider is ProviderName.DOCKER

    @property
    def _free_sessions(self) -> int:
        in_use = len(self._table) - self._table.hibernated + len(self._table.opening)
        return max(0, self._options.max_sessions - in_use)

    def room(
        self, pools: Mapping[str, WarmPool], recipes: Mapping[str, Recipe]
    ) -> dict[str, tuple[int, int]]:
        """Per environment: warm sandboxes that are ready, and sessions that still fit in total."""
        free, use = self._free_sessions, self.use
        room = {}
        for name, pool in pools.items():
            fit = free
            if use is not None and self._is_here(name):
                fit = min(free, count_fitting(use, recipes[name].environment.limits))
            warm = min(pool.ready, fit)
            room[name] = (warm, warm if pool.broken else fit)
        return room

    def check_session_count(self) -> None:
        if self._free_sessions == 0:
            raise Unavailable(
                f"This worker has reached its limit of {self._options.max_sessions} sessions. Delete "
                "some, or raise SANDLOT_MAX_SESSIONS.",
                retry_after_s=5.0,
                details={"reason": "capacity"},
            )

    @contextmanager
    def reserved(self, session: Session) -> Iterator[None]:
        """Reserve room on the machine until the session is in the table with its sandbox.

        Raises ``Unavailable`` if there is no room.
        """
        if not self._is_here(session.environment):
            yield
            return
        self._check_room(session.limits)
        self._reserved[session.id] = session.limits
        try:
            yield
        finally:
            del self._reserved[session.id]

    def _check_room(self, limits: Limits) -> None:
        machine, use = self._options.machine, self.use
        if machine is None or use is None:
            return
        check_fits_machine(machine, limits)
        lack = shortage(use, limits)
        if lack is not None:
            temporary = shortage(MachineUse(use.total, Resources()), limits) is None
            raise Unavailable(
                f"This machine has no capacity for another sandbox: {lack.why}. Delete sessions, ask for "
                "less, or add a worker.",
                retryable=temporary,
                retry_after_s=5.0 if temporary else None,
                details={"reason": "capacity", "limit": lack.limit},
            )
