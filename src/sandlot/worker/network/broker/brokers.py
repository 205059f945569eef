"""The brokers of a worker's sessions, and what they share: secrets, an authority and the package cache."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sandlot.domain.environment import Recipe
from sandlot.domain.network.decisions import Allowed
from sandlot.domain.network.session_egress import SessionEgress
from sandlot.domain.session import Session
from sandlot.worker.network.broker.broker import Broker
from sandlot.worker.network.broker.trust import trust_bundle, trust_variables
from sandlot.worker.network.dialer import Dialer
from sandlot.worker.secrets.vault import Vault

if TYPE_CHECKING:
    from sandlot.worker.network.broker.authority import Authority
    from sandlot.worker.network.cache.package_cache import PackageCache

AUTHORITY_FOLDER: Final = "tls"


class Brokers:
    """``folder``: the worker's data folder. ``packages``: None for no package cache. ``dialer``: the cache's.
    This class opens and closes what it is given."""

    def __init__(
        self,
        folder: Path,
        worker_id: str,
        vault: Vault,
        packages: PackageCache | None = None,
        dialer: Dialer | None = None,
    ) -> None:
        self._folder = folder
        self._worker_id = worker_id
        self._vault = vault
        self._packages = packages
        self._dialer = dialer
        self._authority: Authority | None = None

    async def open(self) -> None:
        await self._vault.open()
        if self._packages is not None:
            await self._packages.open()

    async def close(self) -> None:
        if self._packages is not None:
            await self._packages.close()
        if self._dialer is not None:
            self._dialer.close()
        await self._vault.close()

    def broker_of(self, session: Session, recipe: Recipe) -> Broker:
        return Broker(
            self._vault,
            session.tenant,
            session.environment,
            recipe.gateways,
            recipe.inject,
            self.authority if recipe.inject else None,
            self._packages,
        )

    def variables(self, recipe: Recipe, egress: SessionEgress, now: float) -> dict[str, str]:
        """What lets programs in a sandbox find its gateways, and registries that its policy allows."""
        found: dict[str, str] = {}
        for registry in () if self._packages is None else self._packages.registries.values():
            target = registry.permission
            if isinstance(egress.decide(target.host, target.port, now), Allowed):
                found |= registry.variables
        for gateway in recipe.gateways:
            found |= gateway.variables
        return {**found, **trust_variables()} if recipe.inject else found

    @cached_property
    def trust_bundle(self) -> str:
        """What the sandboxes of environments with injected secrets must trust."""
        return trust_bundle(self.authority.pem)

    @property
    def authority(self) -> Authority:
        """Made when the first environment needs it: most workers read no TLS."""
        if self._authority is None:
            from sandlot.worker.network.broker.authority import Authority

            self._authority = Authority.open(self._folder / AUTHORITY_FOLDER, self._worker_id)
        return self._authority
