"""The command policy that an operator gave a tenant. It applies beside the environment's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from sandlot.domain.errors import PolicyDenied
from sandlot.domain.policy.policy import CommandPolicy

# The rule that an error names if the policy itself is not there.
MISSING: Final = "missing_policy"

# The name of the policy that a tenant was given; None for none.
PolicyOf = Callable[[str], str | None]


def no_policy(_: str) -> None:
    """For a server without keys: it has one tenant, and nobody gives it a policy."""


@dataclass(frozen=True, slots=True)
class TenantPolicies:
    """known: the policies of this server's registry, by name.
    name_of: the name of the one that a tenant was given.
    """

    known: dict[str, CommandPolicy] = field(default_factory=dict)
    name_of: PolicyOf = no_policy

    def replace_known(self, policies: Mapping[str, CommandPolicy]) -> None:
        """The registry was read again."""
        self.known.clear()
        self.known.update(policies)

    def of(self, tenant: str) -> CommandPolicy | None:
        """The tenant's policy, or None if it has none.

        Raises ``PolicyDenied`` if the registry lacks it: a guard rail that is missing must not look like one
        that holds.
        """
        name = self.name_of(tenant)
        if name is None:
            return None
        policy = self.known.get(name)
        if policy is None:
            raise _missing(tenant, name)
        return policy


def _missing(tenant: str, name: str) -> PolicyDenied:
    reason = f"cannot be judged, because the registry of this server has no policy {name}"
    return PolicyDenied(
        f"Tenant {tenant} has the command policy {name}, and the registry of this server has no such policy. "
        "So no command of the tenant runs here, and this one did not run. Ask an operator to add the policy "
        f"to the registry, or to give the tenant another one (`sandlot tenants policy {tenant} POLICY`).",
        details={
            "policy": name,
            "rule": MISSING,
            "words": [],
            "reason": reason,
            "allowed": "Nothing.",
            "findings": [],
        },
    )
