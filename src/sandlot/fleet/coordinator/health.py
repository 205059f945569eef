"""The health of a fleet, read from its directory at most once a second for all callers together."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import structlog

from sandlot import __version__
from sandlot.domain.capacity.pool import PoolStats
from sandlot.domain.errors import SandlotError
from sandlot.domain.service import Catalogue, ServiceHealth
from sandlot.fleet.directory.contract import Directory, DirectoryStatus, FoundPage, WorkerState, WorkerStatus
from sandlot.wire.fleet_bodies import FleetBody, PlacedSessionBody, PlacedSessionsBody, WorkerBody
from sandlot.wire.http_bodies import SessionBody

log = structlog.get_logger("sandlot.coordinator")

FRESH_S: Final = 1.0
# Problems to list. Hundreds of failing workers usually share one cause.
MAX_PROBLEMS: Final = 20


class FleetHealth:
    """The fleet's health, cached for ``FRESH_S``. Logs when the directory goes down or returns."""

    def __init__(
        self,
        directory: Directory,
        coordinator_id: str,
        expected: Sequence[str],
        signed_with: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._directory = directory
        self._id = coordinator_id
        self._expected = expected
        self._signed_with = signed_with
        self._clock = clock
        self.stopping = False
        self._problem: str | None = None
        self._last: ServiceHealth | None = None
        # How many workers the fleet has, by state, as of the last check.
        self.workers: dict[str, int] = {}
        # Those that are alive, as of the last check; none if the directory did not answer.
        self.alive: Sequence[WorkerStatus] = ()
        self._checked_at = 0.0
        self._lock = asyncio.Lock()

    async def current(self) -> ServiceHealth:
        async with self._lock:
            if self._last is None or self._clock() - self._checked_at >= FRESH_S:
                self._last = await self._check()
                self._checked_at = self._clock()
            if self.stopping:
                return replace(
                    self._last, ready=False, creates=False, problems=("stopping", *self._last.problems)
                )
            return self._last

    async def _check(self) -> ServiceHealth:
        try:
            status, workers = await self._directory.status(), await self._directory.workers()
        except SandlotError as error:
            self._log_change(error.message)
            self.alive = ()
            # The coordinator keeps serving the sessions it knows. It knows none, and is not ready,
            # if it has never reached the directory.
            return ServiceHealth(
                ready=self._last is not None and self._last.ready,
                creates=False,
                worker_id=self._id,
                version=__version__,
                active_sessions=0 if self._last is None else self._last.active_sessions,
                calls_under_way=0,
                pools={},
                problems=(error.message,),
                workers=0 if self._last is None else self._last.workers,
            )
        self._log_change(None)
        states = Counter(worker.ref.state.value for worker in workers)
        self.workers = {state.value: states[state.value] for state in WorkerState}
        self.alive = [worker for worker in workers if worker.ref.state is WorkerState.ALIVE]
        return health_of(self._id, status, workers, self._expected, self._signed_with)

    def _log_change(self, problem: str | None) -> None:
        if problem is not None and self._problem is None:
            log.warning(
                "cannot reach the fleet's directory in Redis; sessions continue, creates fail", error=problem
            )
        elif problem is None and self._problem is not None:
            log.info("the fleet's directory in Redis is reachable again")
        self._problem = problem


def accepts_tokens(worker: WorkerStatus, signed_with: str) -> bool:
    """Whether a worker accepts a coordinator's tokens. True if the worker reports no keys."""
    keys = worker.report.keys if worker.report else ()
    return not keys or signed_with in keys


def _refusal_of(worker: WorkerStatus, signed_with: str) -> tuple[str, ...]:
    """What is wrong with a worker that does not accept the coordinator's tokens, and what to do."""
    if accepts_tokens(worker, signed_with):
        return ()
    return (
        f"wrong keys: it refuses this coordinator's calls, because it does not have the public key "
        f"{signed_with}. Add the public key of the coordinator's private key to SANDLOT_FLEET_PUBLIC_KEYS on "
        "the worker and restart the worker",
    )


def health_of(
    coordinator_id: str,
    status: DirectoryStatus,
    workers: Sequence[WorkerStatus],
    expected: Sequence[str],
    signed_with: str,
) -> ServiceHealth:
    alive = [worker for worker in workers if worker.ref.state is WorkerState.ALIVE]
    usable = [worker for worker in alive if accepts_tokens(worker, signed_with)]
    warm: dict[str, int] = {}
    for worker in usable:
        for environment, room in (worker.report.room if worker.report else {}).items():
            warm[environment] = warm.get(environment, 0) + room.warm
    # The list is cut at its end, so problems that stop the whole fleet come first.
    problems = [] if alive else ["no worker is alive"]
    problems += [
        f"worker {worker.ref.id}: {problem}"
        for worker in alive
        for problem in _refusal_of(worker, signed_with)
    ]
    if not status.settled:
        problems.append("the directory is being rebuilt from the workers")
    problems += [
        f"worker {worker.ref.id} is {worker.ref.state.value}"
        for worker in workers
        if worker.ref.state is not WorkerState.ALIVE
    ]
    problems += [
        f"worker {worker.ref.id}: {problem}"
        for worker in alive
        for problem in (worker.report.problems if worker.report else ())
    ]
    joined = {worker.ref.url.rstrip("/") for worker in workers}
    problems += [f"worker {url} has not joined" for url in expected if url.rstrip("/") not in joined]
    return ServiceHealth(
        ready=bool(usable),
        creates=status.settled and bool(usable),
        worker_id=coordinator_id,
        version=__version__,
        active_sessions=status.sessions,
        calls_under_way=0,
        pools={
            name: PoolStats(ready, 0, 0, ready, "each worker has its own pool", 0)
            for name, ready in warm.items()
        },
        problems=tuple(problems[:MAX_PROBLEMS]),
        workers=len(alive),
    )


def with_readiness(catalogue: Catalogue, alive: Sequence[WorkerStatus]) -> Catalogue:
    """The catalogue, with how far each of these workers is with each environment."""
    reports = [worker.report.readiness for worker in alive if worker.report is not None]
    return replace(
        catalogue,
        environments=tuple(
            replace(each, readiness=tuple(report[each.name] for report in reports if each.name in report))
            for each in catalogue.environments
        ),
    )


def fleet_body(status: DirectoryStatus, workers: Sequence[WorkerStatus], signed_with: str) -> FleetBody:
    return FleetBody(
        settled=status.settled,
        sessions=status.sessions,
        reservations=status.reservations,
        workers=[_worker_body(worker, signed_with) for worker in workers],
    )


def _worker_body(worker: WorkerStatus, signed_with: str) -> WorkerBody:
    report = worker.report
    rooms = () if report is None else report.room.values()
    return WorkerBody(
        id=worker.ref.id,
        url=worker.ref.url,
        version=worker.version,
        state=worker.ref.state.value,
        epoch=worker.ref.epoch,
        lease_left_s=round(worker.lease_left_s, 3),
        sessions=0 if report is None else report.sessions,
        recorded=worker.recorded,
        warm=sum(room.warm for room in rooms),
        # Not the sum: all environments share the same free room.
        free=max((room.free for room in rooms), default=0),
        draining=report is not None and report.draining,
        problems=[*_refusal_of(worker, signed_with), *(() if report is None else report.problems)],
        machine=None if report is None else report.machine,
        trusts=accepts_tokens(worker, signed_with),
    )


def placed_body(page: FoundPage) -> PlacedSessionsBody:
    return PlacedSessionsBody(
        [
            PlacedSessionBody(SessionBody.of(found.session), found.worker.id, found.worker.state.value)
            for found in page.found
        ],
        page.next,
    )
