"""HTTP bodies for tenants, their limits and their policies."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from sandlot.domain.callers.limits import CallerLimits, Use
from sandlot.wire.http_bodies import STRICT


@dataclass(frozen=True, slots=True)
class LimitsBody:
    """The most that a tenant, or the holder of one key, may use. ``null``: no limit.

    sessions: sessions at once. Lost ones count until they are deleted.
    cpus: processor cores of all their sandboxes together; may be a fraction.
    memory_mb: memory of all their sandboxes together, in MiB.
    execs: commands that run at once, in all sessions together.
    creates_per_s: new sessions per second; may be a fraction.
    calls_per_s: calls per second; may be a fraction.
    """

    __pydantic_config__: ClassVar[Any] = STRICT

    sessions: int | None = None
    cpus: float | None = None
    memory_mb: int | None = None
    execs: int | None = None
    creates_per_s: float | None = None
    calls_per_s: float | None = None

    @classmethod
    def of(cls, limits: CallerLimits) -> LimitsBody:
        return cls(**asdict(limits))

    def to_domain(self) -> CallerLimits:
        return CallerLimits(**asdict(self))


@dataclass(frozen=True, slots=True)
class PolicyBody:
    """A tenant's command policy.

    policy: the name of a policy in the server's registry; null for none.
    """

    __pydantic_config__: ClassVar[Any] = STRICT

    policy: str | None


@dataclass(frozen=True, slots=True)
class UseBody:
    """What a tenant uses now.

    sessions: how many sessions, lost ones and sessions in creation included.
    cpus: processor cores of their sandboxes.
    memory_mb: memory of their sandboxes, in MiB.
    """

    sessions: int
    cpus: float
    memory_mb: int

    @classmethod
    def of(cls, use: Use) -> UseBody:
        return cls(use.sessions, use.millicpus / 1000, use.memory_mb)


@dataclass(frozen=True, slots=True)
class TenantBody:
    """A tenant.

    tenant: its name.
    limits: that apply to it: its own, and for the rest those that the server's settings give to all tenants.
    own_limits: those that were set for it alone.
    use: what it uses now.
    policy: the name of the command policy that its commands must pass, beside the environment's; null if
        there is none.
    """

    tenant: str
    limits: LimitsBody
    own_limits: LimitsBody
    use: UseBody
    policy: str | None = None


@dataclass(frozen=True, slots=True)
class TenantPageBody:
    """One page of tenants.

    tenants: those that have limits or a policy of their own, by name.
    next: send it as ``after`` to get the next page; null on the last one.
    """

    tenants: list[TenantBody]
    next: str | None = None
