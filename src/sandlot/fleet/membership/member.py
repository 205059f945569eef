"""The contract between a fleet and its worker."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from sandlot.domain.capacity.machine import Condition
from sandlot.domain.session import Session
from sandlot.domain.volumes.volume import Volume


class Member(Protocol):
    """What the membership needs from the worker. ``WorkerHost`` implements it."""

    @property
    def is_open(self) -> bool:
        """Whether the worker has recovered its sessions. Before that it does not know them."""
        ...

    @property
    def draining(self) -> bool: ...

    @property
    def session_count(self) -> int:
        """The number of live and lost sessions."""
        ...

    def condition(self) -> Condition:
        """The condition of the machine: its use and its problems."""
        ...

    def room(self) -> Mapping[str, tuple[int, int]]:
        """Return, by environment, the number of warm sandboxes and of sessions that still fit.

        The second number includes the warm sandboxes.
        """
        ...

    def generation_of(self, session_id: str) -> int | None:
        """Return the generation of a live or lost session, None for any other."""
        ...

    def recorded_sessions(self) -> Sequence[tuple[Session, str | None]]:
        """Return the live, lost and recently ended sessions, with their idempotency keys."""
        ...

    async def recorded_volumes(self) -> Sequence[Volume]:
        """Return all volumes on this worker."""
        ...

    async def adopt_lost_session(self, session: Session) -> Session | None:
        """Keep a session as lost. It belonged to a worker with this id, whose disk is gone.

        Returns None if the session's thread has another session here.
        """
        ...

    async def give_up(self, session_ids: Collection[str]) -> None:
        """Remove sessions that now belong to another worker, with everything they have here."""
        ...
