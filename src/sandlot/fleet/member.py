"""What a fleet needs of a worker."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from sandlot.domain.machine import Condition
from sandlot.domain.session import Session


class Member(Protocol):
    @property
    def is_open(self) -> bool:
        """Whether its sessions are known: not before it has recovered them."""
        ...

    @property
    def draining(self) -> bool: ...

    @property
    def session_count(self) -> int:
        """Living and lost ones."""
        ...

    def condition(self) -> Condition:
        """How the machine does."""
        ...

    def room(self) -> Mapping[str, tuple[int, int]]:
        """By environment: warm sandboxes that are ready, and how many more sessions fit, these included."""
        ...

    def generation_of(self, session_id: str) -> int | None:
        """Of a living or lost session."""
        ...

    def recorded_sessions(self) -> Sequence[tuple[Session, str | None]]:
        """With their idempotency keys: all that live or are lost, and those that ended lately."""
        ...

    async def take_in_lost(self, session: Session) -> Session | None:
        """A session of a worker that had this one's name, and is gone with its disk: known here as lost from
        now on. None if its thread has another one here.
        """
        ...

    async def give_up(self, session_ids: Collection[str]) -> None:
        """Sessions that are another worker's now: nothing of them stays here."""
        ...
