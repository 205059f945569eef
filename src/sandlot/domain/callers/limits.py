"""Limits on what a tenant or a key may use. Pure.

Use is counted for *holders*. Each tenant is one, and so is each key: a session counts for its tenant and for
the key that created it. A holder with its limits is an *allowance*. A caller that would exceed the allowance
of its tenant or of its key is refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Final

from sandlot.domain.callers.principal import Principal
from sandlot.domain.callers.rates import Rate
from sandlot.domain.capacity.limits import MIB, Limits
from sandlot.domain.errors import Busy, InvalidRequest
from sandlot.domain.session import Session
from sandlot.domain.text.suggestions import did_you_mean

# The lowest and the highest value of each limit.
LIMIT_RANGES: Final[Mapping[str, tuple[float, float]]] = {
    "sessions": (0, 1_000_000),
    "cpus": (0, 1_000_000.0),
    "memory_mb": (0, 1_000_000_000),
    "execs": (0, 1_000_000),
    "creates_per_s": (0.001, 100_000.0),
    "calls_per_s": (0.001, 100_000.0),
}


@dataclass(frozen=True, slots=True)
class CallerLimits:
    """The most that a tenant, or the holder of one key, may use. ``None``: no limit.

    sessions: sessions at once. Lost ones count until they are deleted.
    cpus: processor cores of all their sandboxes together; may be a fraction.
    memory_mb: memory of all their sandboxes together, in MiB.
    execs: commands that run at once, in all sessions together.
    creates_per_s: new sessions per second; may be a fraction.
    calls_per_s: calls per second; may be a fraction.
    """

    sessions: int | None = None
    cpus: float | None = None
    memory_mb: int | None = None
    execs: int | None = None
    creates_per_s: float | None = None
    calls_per_s: float | None = None

    def __post_init__(self) -> None:
        for name, (low, high) in LIMIT_RANGES.items():
            value = getattr(self, name)
            if value is not None and not low <= value <= high:
                raise InvalidRequest(f"Limit {name}={value!s:.40} is out of range. Use {low:g} to {high:g}.")

    def or_else(self, other: CallerLimits) -> CallerLimits:
        """These limits, and for those that are not set the other ones."""
        return CallerLimits(
            *(
                getattr(other if getattr(self, field.name) is None else self, field.name)
                for field in fields(self)
            )
        )

    def tightened(self, other: CallerLimits) -> CallerLimits:
        """The lower of both limits, each."""
        pairs = [(getattr(self, field.name), getattr(other, field.name)) for field in fields(self)]
        return CallerLimits(
            *(min((limit for limit in pair if limit is not None), default=None) for pair in pairs)
        )


NO_LIMITS: Final = CallerLimits()


def parse_limits(text: str) -> CallerLimits:
    """Parse limits as in ``sessions=10 cpus=4 calls_per_s=20``."""
    found: dict[str, float] = {}
    for part in text.replace(",", " ").split():
        name, _, value = part.partition("=")
        if name not in LIMIT_RANGES:
            raise InvalidRequest(
                f"Unknown limit {name!r:.80}.{did_you_mean(name[:80], LIMIT_RANGES)} Limits are: "
                f"{', '.join(LIMIT_RANGES)}."
            )
        if name in found:
            raise InvalidRequest(f"Limit {name} is given twice.")
        whole = name in ("sessions", "memory_mb", "execs")
        try:
            found[name] = int(value) if whole else float(value)
        except ValueError:
            kind = "a whole number" if whole else "a number"
            raise InvalidRequest(f"Limit {name} must be {kind}, as in {name}=10.") from None
    return CallerLimits(**found)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Use:
    """What a holder uses.

    sessions: how many sessions.
    millicpus: processor time of their sandboxes, in thousandths of a core.
    memory_mb: memory of their sandboxes, in MiB.
    """

    sessions: int = 0
    millicpus: int = 0
    memory_mb: int = 0

    def __add__(self, other: Use) -> Use:
        return Use(
            self.sessions + other.sessions,
            self.millicpus + other.millicpus,
            self.memory_mb + other.memory_mb,
        )


@dataclass(frozen=True, slots=True)
class Allowance:
    """A tenant or a key with its limits. ``holder`` is the name under which its use is counted."""

    holder: str
    limits: CallerLimits

    @property
    def title(self) -> str:
        kind, _, name = self.holder.partition(":")
        return f"Tenant {name}" if kind == "t" else f"API key {name}"

    @property
    def creates(self) -> Rate | None:
        return _rate(f"{self.holder}:creates", self.limits.creates_per_s)

    @property
    def calls(self) -> Rate | None:
        return _rate(f"{self.holder}:calls", self.limits.calls_per_s)


# A caller's allowances, without those that limit nothing.
AllowancesOf = Callable[[Principal], Sequence[Allowance]]


def no_allowances(_: Principal) -> Sequence[Allowance]:
    """For a server without keys, and for a worker whose coordinators check the limits."""
    return ()


def tenant_holder(tenant: str) -> str:
    return f"t:{tenant}"


def key_holder(key_id: str) -> str:
    return f"k:{key_id}"


def holders_of(tenant: str, key_id: str) -> tuple[str, ...]:
    """The holders that a session of this tenant, created with this key, counts for."""
    return (tenant_holder(tenant), key_holder(key_id)) if key_id else (tenant_holder(tenant),)


def use_of(limits: Limits) -> Use:
    """What one session with these limits uses. Whole numbers, so that sums stay exact."""
    return Use(1, math.ceil(limits.cpus * 1000 - 1e-6), math.ceil(limits.memory_bytes / MIB))


def total_use(holder: str, sessions: Iterable[Session]) -> Use:
    total = Use()
    for session in sessions:
        if holder in holders_of(session.tenant, session.created_by):
            total += use_of(session.limits)
    return total


def exceeded(limits: CallerLimits, used: Use, more: Use) -> str | None:
    """The name of the first limit that ``more`` would exceed, or None."""
    wanted = used + more
    if limits.sessions is not None and wanted.sessions > limits.sessions:
        return "sessions"
    if limits.cpus is not None and wanted.millicpus > limits.cpus * 1000 + 1e-6:
        return "cpus"
    if limits.memory_mb is not None and wanted.memory_mb > limits.memory_mb:
        return "memory_mb"
    return None


def check_room(allowance: Allowance, used: Use, more: Use) -> None:
    """Raise ``Busy`` if the holder may not use this much more."""
    limit = exceeded(allowance.limits, used, more)
    if limit is not None:
        raise limit_reached(allowance, limit, more)


def limit_reached(allowance: Allowance, limit: str, more: Use) -> Busy:
    """``more``: what the holder may not use in addition."""
    most = getattr(allowance.limits, limit)
    what = {
        "sessions": _count(most, "session"),
        "cpus": f"{_count(most, 'core')} for its sandboxes",
        "memory_mb": f"{most} MiB of memory for its sandboxes",
    }[limit]
    details = {"reason": "quota", "limit": limit, "at_most": most}
    if exceeded(allowance.limits, Use(), more) is not None:
        return Busy(
            f"{allowance.title} may have {what}, and this session alone exceeds that. Ask for less, or ask "
            "an administrator for more.",
            retryable=False,
            details=details,
        )
    return Busy(
        f"{allowance.title} has reached its limit of {what}. Delete sessions that you no longer need, or ask "
        "an administrator for more.",
        retry_after_s=5.0,
        details=details,
    )


def too_many_execs(allowance: Allowance) -> Busy:
    most = allowance.limits.execs
    advice = "Wait for one to end, or kill one." if most else "Ask an administrator for more."
    return Busy(
        f"{allowance.title} may run {_count(most, 'command')} at once. {advice}",
        retryable=bool(most),
        retry_after_s=1.0 if most else None,
        details={"reason": "quota", "limit": "execs", "at_most": most},
    )


def too_many_creates(allowance: Allowance, wait_s: float) -> Busy:
    return Busy(
        f"{allowance.title} may create {_count(allowance.limits.creates_per_s, 'session')} per second. "
        f"Retry in {wait_s:.1f} s.",
        retry_after_s=max(0.001, round(wait_s, 3)),
        details={"reason": "rate", "limit": "creates_per_s", "at_most": allowance.limits.creates_per_s},
    )


def too_many_calls(allowance: Allowance, wait_s: float) -> Busy:
    return Busy(
        f"{allowance.title} may make {_count(allowance.limits.calls_per_s, 'call')} per second. Retry in "
        f"{wait_s:.1f} s.",
        retry_after_s=max(0.001, round(wait_s, 3)),
        details={"reason": "rate", "limit": "calls_per_s", "at_most": allowance.limits.calls_per_s},
    )


def _count(number: float | None, what: str) -> str:
    return f"{number:g} {what}{'' if number == 1 else 's'}"


def _rate(name: str, per_s: float | None) -> Rate | None:
    return None if per_s is None else Rate(name, per_s)
