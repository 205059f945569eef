"""Remembers which sandbox each session had in the last answer.

A broken call is repeated only if it would reach the same sandbox.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Self

from sandlot.domain.session import Session

MAX_SEEN: Final = 10_000  # beyond this, the oldest are forgotten


@dataclass(frozen=True, slots=True)
class SandboxSeen:
    """One sandbox of a session: a replacement has another generation."""

    session_id: str
    generation: int

    @classmethod
    def of(cls, session: Session) -> Self:
        return cls(session.id, session.generation)


class SandboxesSeen:
    """The last known sandboxes, by the URL path of the session or thread."""

    def __init__(self) -> None:
        self._seen: dict[str, SandboxSeen] = {}

    def of(self, path: str) -> SandboxSeen | None:
        return self._seen.get(path)

    def record(self, path: str, sandbox: SandboxSeen) -> None:
        before = self._seen.get(path)
        if before is not None and before.session_id == sandbox.session_id:
            if before.generation >= sandbox.generation:
                return  # a late answer about an earlier sandbox
        elif before is None and len(self._seen) >= MAX_SEEN:
            self._seen.pop(next(iter(self._seen)), None)
        self._seen[path] = sandbox
