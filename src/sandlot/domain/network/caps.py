"""Caps: how much of the network one session may use. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from sandlot.domain.errors import InvalidRequest
from sandlot.domain.text.suggestions import did_you_mean

DEFAULT_CONNECTIONS: Final = 64
# The lowest and the highest value of each cap.
CAP_RANGES: Final[Mapping[str, tuple[int, int]]] = {
    "connections": (1, 1024),
    "bytes": (0, 2**50),
    "bytes_per_s": (16 * 1024, 2**40),
}


@dataclass(frozen=True, slots=True)
class Caps:
    """The most that a session may use. None: no cap.

    connections: connections at once.
    bytes: sent and received, over the session's life.
    bytes_per_s: sent and received, on all connections together.
    """

    connections: int = DEFAULT_CONNECTIONS
    bytes: int | None = None
    bytes_per_s: int | None = None

    def tightened(self, other: Caps) -> Caps:
        """The lower of both caps, each."""
        return Caps(
            min(self.connections, other.connections),
            _lower(self.bytes, other.bytes),
            _lower(self.bytes_per_s, other.bytes_per_s),
        )

    def to_document(self) -> dict[str, int]:
        """What ``parse_caps`` reads."""
        values = {name: getattr(self, name) for name in CAP_RANGES}
        return {name: value for name, value in values.items() if value is not None}


def parse_caps(document: Any) -> Caps:
    if not isinstance(document, Mapping):
        raise InvalidRequest(f"caps must be a mapping with {', '.join(CAP_RANGES)}.")
    for name, value in document.items():
        if name not in CAP_RANGES:
            raise InvalidRequest(
                f"Unknown cap {name!r:.80}.{did_you_mean(str(name)[:80], CAP_RANGES)} Caps are: "
                f"{', '.join(CAP_RANGES)}."
            )
        low, high = CAP_RANGES[name]
        if type(value) is not int or not low <= value <= high:
            raise InvalidRequest(f"Cap {name} must be a whole number from {low} to {high}.")
    return Caps(**document)


def _lower(one: int | None, other: int | None) -> int | None:
    return min((cap for cap in (one, other) if cap is not None), default=None)
