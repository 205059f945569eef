"""Snapshots that the worker takes by itself, so that a session's files outlive its machine.

Of a session that hibernates, once nothing writes to its files any more, and of running ones regularly. What
is due follows from the sessions and the records. So a worker that dies takes them later.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import structlog

from sandlot.domain.errors import SandlotError
from sandlot.domain.session import OnIdle, Session, SessionState
from sandlot.domain.workspaces.exports import Cause
from sandlot.worker.sessions.lifecycle import SessionLifecycle
from sandlot.worker.sessions.live_session import LiveSession
from sandlot.worker.workspaces.snapshots import Snapshots

log = structlog.get_logger("sandlot.exports")

# Seconds between two looks at the sessions.
LOOK_EVERY_S: Final = 1.0
# Seconds that a hibernated session's snapshot waits for the removal of its sandbox.
REMOVED_WITHIN_S: Final = 60.0
RETRY_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class _Looked:
    """``snapshot``: the last automatic one. ``current_at``: when the files were known to be as in it.
    ``hibernation``: the generation whose hibernation is done. ``retry_at``: after a failure.
    """

    snapshot: str | None = None
    current_at: float = 0.0
    hibernation: int = 0
    retry_at: float = 0.0
    problem: str | None = None


class AutomaticSnapshots:
    """``every_s``: how often those of running sessions are taken; None: never."""

    def __init__(
        self,
        snapshots: Snapshots,
        sessions: SessionLifecycle,
        every_s: float | None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._snapshots = snapshots
        self._records = snapshots.records
        self._sessions = sessions
        self._every_s = every_s
        self._clock = clock
        self._looked: dict[str, _Looked] | None = None  # by session

    @property
    def problems(self) -> Sequence[str]:
        failed = [looked.problem for looked in (self._looked or {}).values() if looked.problem is not None]
        if not failed:
            return ()
        return (f"Sessions without a new snapshot for object storage: {len(failed)}. {failed[-1]}",)

    async def check(self) -> None:
        if self._looked is None:
            known = await self._records.automatic_exports()
            self._looked = {one.session: _Looked(one.snapshot, one.created_at) for one in known}
        live_sessions = list(self._sessions.table)
        ids = {live_session.session.id for live_session in live_sessions}
        for gone in self._looked.keys() - ids:
            del self._looked[gone]
        for live_session in live_sessions:
            session = live_session.session
            looked = self._looked.get(session.id, _Looked())
            cause = self._due(session, looked)
            if cause is not None:
                self._looked[session.id] = await self._take(live_session, looked, cause)

    def _due(self, session: Session, looked: _Looked) -> Cause | None:
        now = self._clock()
        if session.workspace is None or looked.retry_at > now:
            return None
        if session.state is SessionState.HIBERNATED and session.loss is not None:
            at = session.loss.at
            if looked.hibernation == session.generation or looked.current_at > at:
                return None
            # With its sandbox, the last process that writes to its files is gone.
            waits = self._sessions.is_removing(session.id) and now < at + REMOVED_WITHIN_S
            return None if waits else Cause.HIBERNATION
        if self._every_s is None or session.state not in (SessionState.ACTIVE, SessionState.LOST):
            return None
        since = max(looked.current_at, session.lifetime_from)
        return Cause.INTERVAL if now >= since + self._every_s else None

    async def _take(self, live_session: LiveSession, looked: _Looked, cause: Cause) -> _Looked:
        session, now = live_session.session, self._clock()
        hibernation = session.generation if cause is Cause.HIBERNATION else looked.hibernation
        try:
            if cause is Cause.INTERVAL and await self._records.awaits_export(session.id):
                return looked  # the one before is not saved yet
            # What a session that ends when it is idle was hibernated for is to be seen in its export.
            always = cause is Cause.HIBERNATION and session.on_idle is OnIdle.END
            since = None if always else looked.snapshot
            taken = await self._snapshots.take_automatic(live_session, session.state, since, cause)
        except SandlotError as error:
            log.warning("cannot take a snapshot for export yet", session=session.id, error=error.message)
            return replace(looked, retry_at=now + RETRY_S, problem=error.message)
        return looked if taken is None else _Looked(taken, now, hibernation)
