"""Whom a worker tells about its sessions: a fleet's directory, or nobody."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from sandlot.domain.session import Session


class Registrar(Protocol):
    """``key`` is the idempotency key under which the session was made."""

    @property
    def joined(self) -> bool:
        """Whether new sessions can be told of."""
        ...

    @property
    def problem(self) -> str | None: ...

    def opening(self, session_id: str, *, new: bool) -> AbstractContextManager[None]:
        """From before it is told until it is in the table. If that fails, a new one never was."""
        ...

    async def opened(self, session: Session, key: str | None, reservation: str | None) -> None:
        """Before anybody hears of the session, or of its new sandbox. If it raises, it is not opened."""
        ...

    async def changed(self, session: Session, key: str | None) -> None:
        """It was changed, lost or ended. Bounded in time; never raises: what cannot be told now
        is told later.
        """
        ...


class Unregistered:
    """A worker on its own."""

    joined = True
    problem: str | None = None

    def opening(self, session_id: str, *, new: bool) -> AbstractContextManager[None]:
        return nullcontext()

    async def opened(self, session: Session, key: str | None, reservation: str | None) -> None:
        pass

    async def changed(self, session: Session, key: str | None) -> None:
        pass
