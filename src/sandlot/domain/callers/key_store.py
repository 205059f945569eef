"""The contract of whatever keeps API keys, and the limits and policies of tenants.

That is a server's SQLite file, or a fleet's Redis.

``testing/key_suite.py`` runs against every implementation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from sandlot.domain.callers.keys import ApiKey, KeyPage
from sandlot.domain.callers.limits import CallerLimits
from sandlot.domain.errors import Conflict

# Of one tenant, ended ones included. Each process that admits callers keeps all keys in memory, about
# 1 KB each.
MAX_KEYS_OF_TENANT: Final = 1000
# Tenants with limits of their own. Each process that admits callers keeps all of them in memory.
MAX_TENANTS_WITH_LIMITS: Final = 10_000
# Tenants with a command policy of their own. The same holds for them.
MAX_TENANTS_WITH_POLICY: Final = 10_000
# Changes in one answer of ``changes``, and uses in one call of ``record_use``.
CHANGES_AT_ONCE: Final = 500
# How long an ended key is listed.
REMEMBER_ENDED_S: Final = 90 * 24 * 3600.0


@dataclass(frozen=True, slots=True)
class KeyChanges:
    """What changed since a mark.

    keys: that were added or have ended.
    mark: pass it to the next call of ``changes``.
    everything: whether this begins with the first change, because the store does not know the mark. It may
        have lost its last writes.
    limits, policies: of tenants for which one of them was set.
    more: whether there are more changes than ``CHANGES_AT_ONCE``: call again.
    """

    keys: Sequence[ApiKey]
    mark: str
    everything: bool = False
    limits: Mapping[str, CallerLimits] = field(default_factory=dict)
    policies: Mapping[str, str | None] = field(default_factory=dict)
    more: bool = False


class KeyStore(Protocol):
    async def add(self, key: ApiKey) -> None:
        """Keep a new key. The same call again changes nothing.

        If its tenant has ``MAX_KEYS_OF_TENANT``, the key of the tenant that ended first is forgotten. Raises
        ``Conflict`` if all of them are active when the new key begins.
        """
        ...

    async def get(self, key_id: str) -> ApiKey | None: ...

    async def page(self, tenant: str | None, *, after: str | None = None, limit: int = 100) -> KeyPage:
        """Keys in the order of their ids, active and ended ones. ``tenant`` None: of all tenants."""
        ...

    async def end(self, key_id: str, at: float, *, revoked: bool, replaced_by: str = "") -> ApiKey | None:
        """End a key as ``keys.ended`` says. Returns it, or None if there is no such key."""
        ...

    async def record_use(self, used_at: Mapping[str, float]) -> None:
        """Note when keys were last used. Unknown keys are skipped, and a time never moves back."""
        ...

    async def set_limits(self, tenant: str, limits: CallerLimits) -> None:
        """Set a tenant's limits. ``NO_LIMITS`` takes them away."""
        ...

    async def set_policy(self, tenant: str, policy: str | None) -> None:
        """Give a tenant the command policy of this name. None takes it away."""
        ...

    async def changes(self, mark: str = "") -> KeyChanges:
        """Keys, limits and policies that changed after ``mark``. Uses do not count as changes."""
        ...

    async def forget_ended(self, before: float) -> int:
        """Delete keys that ended before a time. Returns how many."""
        ...


def too_many_keys(tenant: str) -> Conflict:
    return Conflict(
        f"Tenant {tenant} has {MAX_KEYS_OF_TENANT} active keys, the most that one tenant may have. Revoke "
        "some."
    )


def too_many_tenants() -> Conflict:
    return Conflict(
        f"{MAX_TENANTS_WITH_LIMITS} tenants have limits of their own, the most that there may be. Set the "
        "limits that most tenants share with SANDLOT_TENANT_LIMITS."
    )


def too_many_policies() -> Conflict:
    return Conflict(
        f"{MAX_TENANTS_WITH_POLICY} tenants have a policy of their own, the most that there may be. Give the "
        "policy that most tenants share to their environments."
    )
