"""What all callers of a coordinator share."""

from __future__ import annotations

from dataclasses import dataclass, replace

from sandlot.domain.callers.limits import AllowancesOf
from sandlot.domain.callers.principal import Principal, Scope
from sandlot.domain.service import Catalogue, ServiceHealth
from sandlot.fleet.coordinator.asked_workers import AskedWorkers
from sandlot.fleet.coordinator.health import FleetHealth, with_readiness
from sandlot.fleet.coordinator.history import FleetHistory
from sandlot.fleet.coordinator.options import CoordinatorOptions
from sandlot.fleet.coordinator.session_locations import SessionLocations
from sandlot.fleet.coordinator.worker_links import WorkerLinks
from sandlot.fleet.directory.contract import Directory


@dataclass(slots=True)
class CoordinatorParts:
    """``calls``: how many calls are in progress."""

    directory: Directory
    catalogue: Catalogue
    options: CoordinatorOptions
    links: WorkerLinks
    locations: SessionLocations
    fleet_health: FleetHealth
    allowances: AllowancesOf
    history: FleetHistory
    asked: AskedWorkers
    calls: int = 0

    async def catalogue_for(self, principal: Principal) -> Catalogue:
        """With how far the workers are with each environment, for who may see that.

        Others do not wait for the directory.
        """
        if not principal.may(Scope.METRICS_READ):
            return self.catalogue
        await self.fleet_health.current()
        return with_readiness(self.catalogue, self.fleet_health.alive)

    async def health(self) -> ServiceHealth:
        return replace(await self.fleet_health.current(), calls_under_way=self.calls)

    async def health_for(self, principal: Principal) -> ServiceHealth:
        health = await self.health()
        if principal.may(Scope.METRICS_READ):
            return health
        own = (await self.directory.status(principal.tenant)).sessions
        return health.visible_to(principal, own_sessions=own)
