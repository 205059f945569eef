"""How many warm sandboxes to hold, and when to make the next one. Pure: numbers in, decisions out.

The target is what is claimed during one refill (claims per second times seconds to make one), kept within the
environment's minimum and maximum. Every figure that led to it is in the answer, for people to read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sandlot.domain.errors import InvalidRequest

DEFAULT_POOL_SIZE = 5
DEFAULT_MIN_POOL_SIZE = 2
DEFAULT_MAX_POOL_SIZE = 20


@dataclass(frozen=True, slots=True)
class PoolPolicy:
    """``size`` is held while demand is unknown or low; demand moves the target within ``min`` … ``max``."""

    size: int = DEFAULT_POOL_SIZE
    min: int = DEFAULT_MIN_POOL_SIZE
    max: int = DEFAULT_MAX_POOL_SIZE

    def __post_init__(self) -> None:
        if not 0 <= self.min <= self.size <= self.max:
            raise InvalidRequest(
                f"a pool needs 0 ≤ min ≤ size ≤ max, not {self.min}, {self.size}, {self.max}"
            )


@dataclass(frozen=True, slots=True)
class PoolStats:
    """``misses`` by reason; ``claim_ms_p50`` over the latest claims; ``target_reason`` in words."""

    ready: int
    making: int
    waiting: int
    target: int
    target_reason: str
    hits: int
    misses: Mapping[str, int] = field(default_factory=dict)
    claim_ms_p50: float = 0.0
    suggested_size: int = 0
    failures: int = 0
    last_failure: str = ""
