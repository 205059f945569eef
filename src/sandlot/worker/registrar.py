"""Where a worker reports its sessions: to a fleet's directory, or nowhere if it works alone."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from sandlot.domain.session import Session
from sandlot.domain.volumes.volume import Volume


class Registrar(Protocol):
    """Records a worker's sessions.

    ``key`` is the idempotency key with which a session was created.
    """

    @property
    def joined(self) -> bool:
        """Whether new sessions can be recorded now."""
        ...

    @property
    def problem(self) -> str | None: ...

    def opening(self, session_id: str, *, new: bool) -> AbstractContextManager[None]:
        """A context that lasts from before the session is recorded until it is in the table.

        If it exits with an error, a new session counts as never created.
        """
        ...

    async def opened(self, session: Session, key: str | None, reservation: str | None) -> None:
        """Record the session before any client learns of it or of its new sandbox.

        If this raises, the session is not opened.
        """
        ...

    async def changed(self, session: Session, key: str | None) -> None:
        """Record that the session was changed, lost or ended. Takes a bounded time and never
        raises: a report that fails is sent again later.
        """
        ...

    async def name_volume(self, volume: Volume) -> None:
        """Record a new volume's name. ``Conflict`` if another volume of the tenant has it.

        May be called again for the same volume.
        """
        ...

    async def forget_volume(self, volume: Volume) -> None:
        """Free a volume's name."""
        ...


class Unregistered:
    """The registrar of a worker without a fleet: it records nothing."""

    joined = True
    problem: str | None = None

    def opening(self, session_id: str, *, new: bool) -> AbstractContextManager[None]:
        return nullcontext()

    async def opened(self, session: Session, key: str | None, reservation: str | None) -> None:
        pass

    async def changed(self, session: Session, key: str | None) -> None:
        pass

    async def name_volume(self, volume: Volume) -> None:
        pass

    async def forget_volume(self, volume: Volume) -> None:
        pass
