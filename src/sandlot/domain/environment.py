"""An environment: a named recipe for sandboxes. No logic."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from sandlot.domain.limits import Limits


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
