"""Hosts that also act for their owner, for tests with one caller."""

from __future__ import annotations

from typing import Any

from sandlot.domain.callers.limits import AllowancesOf, no_allowances
from sandlot.domain.callers.principal import OWNER
from sandlot.domain.service import Catalogue
from sandlot.fleet.access import AccessTokens
from sandlot.fleet.coordinator.host import CoordinatorHost
from sandlot.fleet.coordinator.options import CoordinatorOptions
from sandlot.fleet.coordinator.service import CoordinatorService
from sandlot.fleet.directory.contract import Directory
from sandlot.providers.base import Provider
from sandlot.worker.host import WorkerHost
from sandlot.worker.service import WorkerService


class OwnWorker(WorkerHost, WorkerService):
    def __init__(self, provider: Provider, **parts: Any) -> None:
        WorkerHost.__init__(self, provider, **parts)
        WorkerService.__init__(self, OWNER, self._parts, self._options, self._catalogue, self._status)


class OwnCoordinator(CoordinatorHost, CoordinatorService):
    def __init__(
        self,
        directory: Directory,
        tokens: AccessTokens,
        catalogue: Catalogue,
        options: CoordinatorOptions | None = None,
        allowances: AllowancesOf = no_allowances,
    ) -> None:
        CoordinatorHost.__init__(self, directory, tokens, catalogue, options, allowances)
        CoordinatorService.__init__(self, OWNER, self._parts)
