"""Which sandbox a session had when it was last heard of.

A call that broke is made again only if it would reach the same sandbox.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Self

from sandlot.domain.session import Session

MAX_SEEN: Final = 10_000  # those heard of first are forgotten


@dataclass(frozen=True, slots=True)
class SandboxSeen:
    session_id: str
    generation: int

    @classmethod
    def of(cls, session: Session) -> Self:
        return cls(session.id, session.generation)


class SandboxesSeen:
    """By the path of the session or thread."""

    def __init__(self) -> None:
        self._seen: dict[str, SandboxSeen] = {}

    def of(self, path: str) -> SandboxSeen | None:
        return self._seen.get(path)

    def saw(self, path: str, sandbox: SandboxSeen) -> None:
        before = self._seen.get(path)
        if before is not None and before.session_id == sandbox.session_id:
            if before.generation >= sandbox.generation:
                return  # an answer that took its time
        elif before is None and len(self._seen) >= MAX_SEEN:
            self._seen.pop(next(iter(self._seen)), None)
        self._seen[path] = sandbox
