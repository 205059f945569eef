"""An environment: a named recipe for sandboxes. No logic."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from sandlot.domain.limits import DEFAULT_CEILINGS, Limits
from sandlot.domain.pool import PoolPolicy
from sandlot.domain.session import DEFAULT_IDLE_TIMEOUT_S, DEFAULT_LIFETIME_S


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
