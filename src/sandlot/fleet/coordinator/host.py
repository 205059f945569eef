"""``CoordinatorHost``: a coordinator's parts and its end, and a ``CoordinatorService`` for each caller."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import structlog

from sandlot.domain.background_tasks import BackgroundTasks
from sandlot.domain.callers.limits import AllowancesOf, Use, no_allowances
from sandlot.domain.callers.principal import MEMBER, Principal
from sandlot.domain.callers.scoped_service import scoped
from sandlot.domain.environment import ServerReload
from sandlot.domain.errors import SandlotError
from sandlot.domain.metrics.figures import Figures
from sandlot.domain.metrics.table import COORDINATOR_METRICS, WORKERS
from sandlot.domain.service import Access, Catalogue, SandboxService, ServiceHealth
from sandlot.domain.session import Session, SessionState
from sandlot.fleet.access import AccessTokens
from sandlot.fleet.coordinator.asked_workers import AskedWorkers
from sandlot.fleet.coordinator.health import FleetHealth
from sandlot.fleet.coordinator.history import FleetHistory
from sandlot.fleet.coordinator.operator_requests import FleetOperations
from sandlot.fleet.coordinator.options import CoordinatorOptions
from sandlot.fleet.coordinator.parts import CoordinatorParts
from sandlot.fleet.coordinator.service import CoordinatorService
from sandlot.fleet.coordinator.session_locations import SessionLocations
from sandlot.fleet.coordinator.worker_links import WorkerLink, WorkerLinks
from sandlot.fleet.directory.contract import Directory, WorkerRef, WorkerState

# Seconds that a stopping coordinator waits for calls in progress. Clients can retry them elsewhere.
STOP_WITHIN_S: Final = 10.0
# The average time between two sweeps of a coordinator. Any one of them is enough for the fleet.
SWEEP_EVERY_S: Final = 30.0

log = structlog.get_logger("sandlot.coordinator")


class CoordinatorHost:
    """A coordinator, for many callers. The caller closes the directory."""

    def __init__(
        self,
        directory: Directory,
        tokens: AccessTokens,
        catalogue: Catalogue,
        options: CoordinatorOptions | None = None,
        allowances: AllowancesOf = no_allowances,
        figures: Figures | None = None,
    ) -> None:
        """``figures``: for the metrics."""
        self._tokens = tokens
        options = options or CoordinatorOptions()
        links = WorkerLinks(tokens.for_member, self._worker_of)
        self.asked_workers = AskedWorkers(directory, links)
        self._parts = CoordinatorParts(
            directory,
            catalogue,
            options,
            links,
            SessionLocations(directory, links),
            FleetHealth(directory, options.coordinator_id, options.expected, tokens.signed_with),
            allowances,
            FleetHistory(links, self.asked_workers),
            self.asked_workers,
        )
        health = self._parts.fleet_health
        self.figures = figures or Figures(COORDINATOR_METRICS)
        self.figures.watch(WORKERS, lambda: {(state,): count for state, count in health.workers.items()})
        self.operations = FleetOperations(directory, links, tokens)
        self._background = BackgroundTasks()

    async def _worker_of(self, tenant: str, session_id: str) -> WorkerRef:
        return await self._parts.locations.worker_of(tenant, session_id)

    def acting_for(self, principal: Principal) -> SandboxService:
        return scoped(CoordinatorService(principal, self._parts), principal)

    def access(self, principal: Principal, session: Session) -> Access | None:
        """Return direct access to the worker of a session that this coordinator just returned."""
        known = self._parts.locations.known(session.id) if self._parts.options.direct else None
        if known is None or session.state not in (SessionState.ACTIVE, SessionState.UNRESPONSIVE):
            return None
        worker, stale_s = known
        if worker.state is not WorkerState.ALIVE:
            return None
        return self._tokens.for_session(principal, session, worker.url, worker.id, stale_s=stale_s)

    async def tenant_of(self, session_id: str) -> str:
        return await self._parts.locations.tenant_of(session_id)

    async def health(self) -> ServiceHealth:
        return await self._parts.health()

    async def use(self, holder: str) -> Use:
        return await self._parts.directory.use(holder)

    async def reload(self, catalogue: Catalogue) -> Sequence[ServerReload]:
        """Have every worker read its registry again, and offer this catalogue then.

        Returns what the workers did.
        """
        workers = await self.asked_workers.all()
        answers = await self.asked_workers.ask(workers, MEMBER, _reload)
        self._parts.catalogue = catalogue
        return [
            ServerReload(worker_id, problem="It did not answer.")
            if answer is None
            else replace(answer, server=worker_id)
            for worker_id, answer in answers.items()
        ]

    async def stop(self) -> None:
        """Take no new sessions, and wait up to ``STOP_WITHIN_S`` for calls in progress.

        The other coordinators keep serving.
        """
        self._parts.fleet_health.stopping = True
        deadline = time.monotonic() + STOP_WITHIN_S
        # Polls, because calls are frequent and stops are rare: an event would cost every call.
        while self._parts.calls and time.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.05)

    def start_sweeping(self) -> None:
        """Remove workers that are long gone from the directory, now and then until ``close``.

        Workers do not do this, because none of them may write another one's record.
        """
        self._background.start(self._sweep(), "sweep the directory")

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_EVERY_S * random.uniform(0.5, 1.5))  # noqa: S311
            try:
                await self._parts.directory.sweep()
            except SandlotError as error:
                log.info("cannot clean up the fleet's directory in Redis; will retry", error=error.message)
            except Exception:
                log.exception("cannot clean up the fleet's directory in Redis; will retry")

    async def close(self) -> None:
        await self._background.cancel()
        await self._parts.links.close()


async def _reload(link: WorkerLink) -> ServerReload:
    try:
        return await link.reload_environments()
    except SandlotError as error:
        return ServerReload("", problem=error.message)
