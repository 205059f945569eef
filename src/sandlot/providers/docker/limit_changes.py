"""Decides which limits of a sandbox can change while it runs. Pure.

runsc cannot change a container's limits. On that tier only the memory limit can change, because the
agent enforces it, and it cannot exceed the memory that the sandbox was made with.
"""

from __future__ import annotations

from typing import Any

from sandlot.domain.capacity.limits import Limits
from sandlot.domain.environment import Environment, Tier
from sandlot.domain.errors import Unsupported
from sandlot.providers.docker.spec import fixed_limits, resource_limits


def can_update(environment: Environment, limits: Limits) -> bool:
    tier, initial = environment.tier, environment.limits
    if fixed_limits(tier, limits) != fixed_limits(tier, initial):
        return False
    if tier is Tier.RUNC:
        return True
    same = (limits.cpus, limits.pids) == (initial.cpus, initial.pids)
    return same and limits.memory_bytes <= initial.memory_bytes


def limit_change(tier: Tier, limits: Limits, current: dict[str, Any]) -> dict[str, Any]:
    """Returns the values for the engine to set. ``current`` is the container's ``HostConfig``.

    Raises ``Unsupported`` if the change is not possible.
    """
    fixed, changeable = fixed_limits(tier, limits), resource_limits(tier, limits)
    if tier is Tier.RUNSC:
        if changeable["Memory"] > current["Memory"]:
            raise Unsupported("A runsc sandbox cannot get more memory than it was created with.")
        fixed |= changeable | {name: current[name] for name in ("Memory", "MemorySwap")}
    for name, value in fixed.items():
        if current.get(name) != value:
            raise Unsupported(f"{name} cannot change while a {tier} sandbox runs.")
    return changeable
