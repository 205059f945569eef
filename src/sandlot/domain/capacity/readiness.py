"""Whether sandboxes of an environment can be made on a server, and what stands in the way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class ReadinessState(StrEnum):
    """How far a server is with an environment.

    ready: its image is there, and the last sandbox could be made, if one was.
    preparing: its first sandbox is being made. That takes minutes if an image is fetched or a set-up
        script runs.
    missing: its image is not on the machine.
    failing: the last sandbox could not be made. The server tries again when it needs one.
    unknown: no sandbox was made yet, and the server cannot say whether the image exists.
    """

    READY = "ready"
    PREPARING = "preparing"
    MISSING = "missing"
    FAILING = "failing"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Readiness:
    """How far one server is with an environment.

    server: the worker's id.
    state: how far it is.
    reason: what stands in the way, in words; empty if nothing does.
    since: since when the server sees it so, in seconds since the epoch, by its own clock.
    warm: how many sandboxes are ready for new sessions.
    """

    server: str
    state: ReadinessState
    reason: str = ""
    since: float | None = None
    warm: int = 0


def summarize(servers: Sequence[Readiness]) -> str:
    """One state if all servers agree, else how many have which, the most frequent first."""
    states = Counter(one.state.value for one in servers)
    if len(states) <= 1:
        return next(iter(states), "-")
    return ", ".join(f"{count} {state}" for state, count in states.most_common())
