"""Who may call a server beside the holder of its own key: users with keys, and an issuer's tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sandlot.api.edge.key_ring import KeyRing
from sandlot.client.extras import import_extra
from sandlot.config.settings import ServerSettings
from sandlot.domain.callers.key_store import KeyStore
from sandlot.domain.callers.limits import NO_LIMITS, AllowancesOf, no_allowances
from sandlot.domain.errors import InvalidRequest
from sandlot.domain.policy.tenant_policies import PolicyOf, no_policy

if TYPE_CHECKING:
    from sandlot.api.edge.oidc import OidcTokens


class Callers:
    """Both are None on a server without a key, which is open to its machine: nobody needs one."""

    def __init__(self, settings: ServerSettings, store: KeyStore) -> None:
        if settings.key is None and settings.shared_limits != NO_LIMITS:
            raise InvalidRequest(
                "SANDLOT_TENANT_LIMITS needs SANDLOT_API_KEY. Without keys, a server has one tenant."
            )
        self.ring = None if settings.key is None else KeyRing(store, shared_limits=settings.shared_limits)
        self.oidc = None if settings.key is None else _oidc(settings)

    @property
    def allowances(self) -> AllowancesOf:
        return no_allowances if self.ring is None else self.ring.allowances

    @property
    def policy_of(self) -> PolicyOf:
        return no_policy if self.ring is None else self.ring.policy_of

    async def open(self) -> None:
        if self.ring is not None:
            await self.ring.open()
        if self.oidc is not None:
            await self.oidc.open()

    async def close(self) -> None:
        if self.ring is not None:
            await self.ring.close()
        if self.oidc is not None:
            await self.oidc.close()


def _oidc(settings: ServerSettings) -> OidcTokens | None:
    if settings.oidc_issuer is None or settings.oidc_audience is None:
        return None
    oidc = import_extra("sandlot.api.edge.oidc", extra="oidc", needed_by="SANDLOT_OIDC_ISSUER")
    issuer = oidc.Issuer(
        settings.oidc_issuer, settings.oidc_audience, settings.oidc_tenant_claim, settings.oidc_scope_claim
    )
    tokens: OidcTokens = oidc.OidcTokens(issuer)
    return tokens
