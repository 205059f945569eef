"""Converts an environment's YAML, already validated against its schema, to a ``Recipe``. Pure.

Sizes are bytes or text such as "512m". Times are seconds, text such as "30m", or "never".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from sandlot.domain.artifacts.patterns import check_patterns
from sandlot.domain.capacity.limits import DEFAULT_CEILINGS, LimitChange, Limits
from sandlot.domain.capacity.pool import PoolPolicy
from sandlot.domain.code.contexts import Language
from sandlot.domain.environment import Environment, ProviderName, Recipe, Tier
from sandlot.domain.errors import InvalidRequest
from sandlot.domain.network.policy import NONE, parse_policy
from sandlot.domain.policy.policy import CommandPolicy
from sandlot.domain.secrets.gateways import parse_gateways, parse_inject
from sandlot.domain.session import (
    DEFAULT_ENVIRONMENT,
    DEFAULT_IDLE_TIMEOUT_S,
    DEFAULT_LIFETIME_S,
    check_timeout,
)
from sandlot.domain.workspaces.setup import DEFAULT_SETUP_TIMEOUT_S, Setup

DEFAULT_TIERS = {ProviderName.DOCKER: Tier.RUNC, ProviderName.E2B: Tier.MICROVM}
_SIZE = re.compile(r"(\d+(?:\.\d+)?) ?([kmgt]?)(?:i?b)?", re.IGNORECASE)
_DURATION = re.compile(r"(\d+(?:\.\d+)?) ?([smhd])")
_SIZE_UNITS = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3, "t": 1024**4}
_DURATION_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


@dataclass(frozen=True, slots=True)
class RecipeDefaults:
    """Values for what a recipe omits.

    ``pool`` is for the default environment; the others start without a pool.
    """

    pool: PoolPolicy = field(default_factory=PoolPolicy)
    idle_timeout_s: float | None = DEFAULT_IDLE_TIMEOUT_S
    lifetime_s: float | None = DEFAULT_LIFETIME_S
    ceilings: Limits = DEFAULT_CEILINGS


def recipe_of(
    document: Mapping[str, Any], defaults: RecipeDefaults, policies: Mapping[str, CommandPolicy]
) -> Recipe:
    """``policies``: all that the registry has, by name. The document names one of them or none."""
    name = document["name"]
    idle_timeout_s = _timeout(document, "idle_timeout", defaults.idle_timeout_s)
    lifetime_s = _timeout(document, "lifetime", defaults.lifetime_s)
    provider = ProviderName(document.get("provider", ProviderName.DOCKER))
    limits, ceilings = _limits_of(document, defaults, provider)
    return Recipe(
        environment=Environment(
            name=name,
            image=document["image"],
            tier=Tier(document.get("tier", DEFAULT_TIERS[provider])),
            limits=limits,
            setup=_setup(document),
            seed=document.get("seed"),
            provider=provider,
        ),
        description=document["description"],
        languages=tuple(document.get("languages", ())),
        ceilings=ceilings,
        pool=_pool(document.get("pool"), defaults.pool, is_default=name == DEFAULT_ENVIRONMENT),
        idle_timeout_s=idle_timeout_s,
        lifetime_s=lifetime_s,
        policy=policies[document["policy"]] if "policy" in document else None,
        record=document.get("record", False),
        network=parse_policy(document.get("network", NONE)),
        gateways=parse_gateways(document.get("gateways", {})),
        inject=parse_inject(document.get("inject", ())),
        artifacts=check_patterns(document.get("artifacts", ())),
        contexts=tuple(Language(name) for name in document.get("contexts", ())),
    )


def bytes_of_size(size: int | str) -> int:
    if isinstance(size, int):
        return size
    match = _SIZE.fullmatch(size.strip())
    if match is None:
        raise InvalidRequest(f"{size!r:.40} is not a valid size. Use a value such as 536870912, 512m or 1g.")
    return int(float(match[1]) * _SIZE_UNITS[match[2].lower()])


def seconds_of_duration(duration: float | str) -> float | None:
    """The duration in seconds. None means never."""
    if not isinstance(duration, str):
        return float(duration)
    if duration == "never":
        return None
    match = _DURATION.fullmatch(duration.strip())
    if match is None:
        raise InvalidRequest(f"{duration!r:.40} is not a valid time. Use a value such as 90, 30m or 1h.")
    return float(match[1]) * _DURATION_UNITS[match[2]]


def _timeout(document: Mapping[str, Any], key: str, default: float | None) -> float | None:
    if key not in document:
        return default
    seconds = seconds_of_duration(document[key])
    check_timeout(key, seconds)
    return seconds


def _setup(document: Mapping[str, Any]) -> Setup | None:
    if "setup" not in document:
        if "setup_timeout_s" in document:
            raise InvalidRequest("setup_timeout_s has no meaning without setup. Add a script, or remove it.")
        return None
    return Setup(document["setup"], float(document.get("setup_timeout_s", DEFAULT_SETUP_TIMEOUT_S)))


def _limits_of(
    document: Mapping[str, Any], defaults: RecipeDefaults, provider: ProviderName
) -> tuple[Limits, Limits]:
    """The environment's limits, and the most that a session may ask for."""
    if provider is ProviderName.DOCKER:
        limits = _limits(document.get("limits", {}), Limits())
        return limits, _ceilings(document.get("max_limits", {}), limits, defaults.ceilings)
    for key in ("limits", "max_limits"):
        if key in document:
            raise InvalidRequest(f"{key}: the template at {provider} fixes the limits. Remove {key}.")
    return Limits(), Limits()


def _limits(document: Mapping[str, Any], base: Limits) -> Limits:
    def size(key: str) -> int | None:
        return bytes_of_size(document[key]) if key in document else None

    change = LimitChange(
        memory_bytes=size("memory"),
        cpus=document.get("cpus"),
        pids=document.get("pids"),
        tmp_bytes=size("tmp"),
        shm_bytes=size("shm"),
        open_files=document.get("open_files"),
    )
    return change.apply(base)


def _ceilings(document: Mapping[str, Any], limits: Limits, base: Limits) -> Limits:
    """The environment's ceilings, else the server's; never below its sandboxes' own limits."""
    own = _limits(document, limits)
    for name, value in asdict(own).items():
        if value < getattr(limits, name):
            raise InvalidRequest(
                f"max_limits: {name}={value} is below the environment's own limit. Raise it, or lower the "
                "limit."
            )
    stated = _limits(document, base)
    return Limits(**{name: max(value, getattr(limits, name)) for name, value in asdict(stated).items()})


def _pool(document: Mapping[str, Any] | None, defaults: PoolPolicy, *, is_default: bool) -> PoolPolicy:
    if document is None:
        return defaults if is_default else PoolPolicy(size=0, min=0, max=defaults.max)
    size = document["size"]
    return PoolPolicy(
        size=size,
        min=document.get("min", min(defaults.min, size)),
        max=document.get("max", max(defaults.max, size)),
    )
