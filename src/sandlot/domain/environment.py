"""An environment: a named recipe for sandboxes; and what to say of a name that none has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from sandlot.domain.errors import InvalidRequest
from sandlot.domain.limits import DEFAULT_CEILINGS, Limits
from sandlot.domain.pool import PoolPolicy
from sandlot.domain.session import DEFAULT_IDLE_TIMEOUT_S, DEFAULT_LIFETIME_S
from sandlot.domain.suggestions import did_you_mean


class Tier(StrEnum):
    """How strong the wall is. A missing tier is an error, never replaced by a weaker one."""

    RUNC = "runc"
    RUNSC = "runsc"


@dataclass(frozen=True, slots=True)
class Environment:
    name: str
    image: str
    tier: Tier = Tier.RUNC
    limits: Limits = field(default_factory=Limits)


@dataclass(frozen=True, slots=True)
class Recipe:
    """An environment as the registry declares it: what a sandbox is, and how sessions on it are kept.

    A timeout of None never comes. ``ceilings``: the most that a session may ask for instead of the
    environment's own limits.
    """

    environment: Environment
    description: str = ""
    languages: tuple[str, ...] = ()
    ceilings: Limits = DEFAULT_CEILINGS
    pool: PoolPolicy = field(default_factory=PoolPolicy)
    idle_timeout_s: float | None = DEFAULT_IDLE_TIMEOUT_S
    lifetime_s: float | None = DEFAULT_LIFETIME_S


def no_environment(name: str, known: Mapping[str, Tier]) -> InvalidRequest:
    """Never the default one instead: the name may have been meant to ask for a stronger wall.

    ``known``: this server's environments, by name.
    """
    of_tier = sorted(one for one, tier in known.items() if tier == name.lower())
    hint = f"; {name.lower()} is the tier of {', '.join(of_tier)}" if of_tier else did_you_mean(name, known)
    return InvalidRequest(f"there is no environment {name!r:.80} among {', '.join(sorted(known))}{hint}")
