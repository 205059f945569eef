"""How much more this worker's machine can take: what is let in, and what is offered to a fleet."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from sandlot.domain.environment import Recipe
from sandlot.domain.errors import Unavailable
from sandlot.domain.limits import Limits
from sandlot.domain.machine import (
    MachineUse,
    Share,
    check_one,
    fitting,
    for_sandboxes,
    given_to,
    shortage,
)
from sandlot.domain.session import Session, SessionState
from sandlot.worker.disk import Disk
from sandlot.worker.options import WorkerOptions
from sandlot.worker.pool import Pool
from sandlot.worker.table import SessionTable


class Capacity:
    def __init__(self, options: WorkerOptions, table: SessionTable, disk: Disk) -> None:
        self._options = options
        self._table = table
        self._disk = disk
        self._total = None if options.machine is None else for_sandboxes(options.machine, options.overcommit)
        self._promised: dict[str, Limits] = {}  # to sessions that are about to have a sandbox

    @property
    def use(self) -> MachineUse | None:
        """None: nothing is known of the machine, and only sessions are counted."""
        if self._total is None:
            return None
        return MachineUse(self._total, given_to(self._all()), self._disk.free_bytes)

    def _all(self) -> Iterator[Limits]:
        """A lost session has no sandbox; one that is recreated is admitted again."""
        yield from self._promised.values()
        for live in self._table:
            if live.session.state is SessionState.ACTIVE:
                yield live.session.limits

    @property
    def _free(self) -> int:
        return max(0, self._options.max_sessions - len(self._table) - len(self._table.opening))

    def room(self, pools: Mapping[str, Pool], recipes: Mapping[str, Recipe]) -> dict[str, tuple[int, int]]:
        """By environment: warm sandboxes that are ready, and how many more sessions fit, these included."""
        free, use = self._free, self.use
        room = {}
        for name, pool in pools.items():
            fit = free if use is None else min(free, fitting(use, recipes[name].environment.limits))
            warm = min(pool.ready, fit)
            room[name] = (warm, warm if pool.broken else fit)
        return room

    def check_count(self) -> None:
        if self._free == 0:
            raise Unavailable(
                f"this worker holds {self._options.max_sessions} sessions and takes no more; delete some",
                retry_after_s=5.0,
                details={"reason": "capacity"},
            )

    @contextmanager
    def admitted(self, session: Session) -> Iterator[None]:
        """Against what the machine has, until the session stands in the table with its sandbox."""
        self._check_room(session.limits)
        self._promised[session.id] = session.limits
        try:
            yield
        finally:
            del self._promised[session.id]

    def _check_room(self, limits: Limits) -> None:
        machine, use = self._options.machine, self.use
        if machine is None or use is None:
            return
        check_one(machine, limits)
        lacks = shortage(use, limits)
        if lacks is not None:
            passes = shortage(MachineUse(use.total, Share()), limits) is None
            raise Unavailable(
                f"this machine has no room for another sandbox: {lacks.why}; delete sessions, ask for less, "
                "or add a worker",
                retryable=passes,
                retry_after_s=5.0 if passes else None,
                details={"reason": "capacity", "limit": lacks.limit},
            )
