"""Resolves the environment and provider names that the first interfaces used.

Those few environment names mean a default environment. Any other name is a current environment or an
error: ``gVisor``, ``runsc`` or a typo may have been a request for stronger isolation than the default's.

``e2b`` as a provider means the environments at E2B. A server that has none takes every provider's name
for itself, as the servers of that time did.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from sandlot.domain.environment import ProviderName, Tier, unknown_environment_error
from sandlot.domain.errors import InvalidRequest

FORMER_NAMES: Final = frozenset(
    {"python", "python3", "python:latest", "node", "nodejs", "node:latest", "default"}
)


def resolve_environment(
    name: str | None, known: Mapping[str, Tier], provider: str | None = None
) -> str | None:
    """The current name; None means the default. ``known``: the server's environments, by name."""
    if provider not in (None, *ProviderName):
        raise InvalidRequest(f"provider must be docker or e2b, not {provider!r:.40}.")
    remote = sorted(found for found, tier in known.items() if provider_of(tier) is ProviderName.E2B)
    if provider is None or not remote:
        return _resolve(name, known)
    wanted = set(remote) if provider == ProviderName.E2B else known.keys() - set(remote)
    if name in wanted:
        return name
    former = name is None or name.lower() in FORMER_NAMES
    if provider != ProviderName.E2B and former:
        return None
    if former and len(remote) == 1:
        return remote[0]
    if not former:
        _resolve(name, known)  # one that there is not has an error of its own
    raise InvalidRequest(
        f"Environment {name or 'default'} is not one of the provider {provider}. Name one of "
        f"{', '.join(sorted(wanted))}."
    )


def provider_of(tier: Tier | None) -> ProviderName:
    """Only E2B's sandboxes are virtual machines. None: the environment is gone."""
    return ProviderName.E2B if tier is Tier.MICROVM else ProviderName.DOCKER


def _resolve(name: str | None, known: Mapping[str, Tier]) -> str | None:
    if name is None or name in known:
        return name
    if name.lower() in FORMER_NAMES:
        return None
    raise unknown_environment_error(name, known)
