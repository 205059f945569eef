"""Sessions that a fleet moves between workers: those given up here, and those taken in."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Collection, Sequence

import structlog

from sandlot.domain.errors import StorageProblem
from sandlot.domain.recovery import Purpose
from sandlot.domain.session import Session, SessionState
from sandlot.domain.session_states import lose, loss_report, mark_worker_lost, reset_idle_clock
from sandlot.worker.history.history import History
from sandlot.worker.options import WorkerOptions
from sandlot.worker.sessions.live_session import LiveSession
from sandlot.worker.sessions.table import SessionTable
from sandlot.worker.store.database import SessionRecord, Store
from sandlot.worker.store.transitions import Transitions
from sandlot.worker.upkeep.removals import Removals

log = structlog.get_logger("sandlot.sessions")

# Ended sessions that the worker reports to an emptied directory: their age in seconds, and number.
REPORT_ENDED_S = 3600.0
MAX_ENDED_REPORTED = 1000


class FleetMoves:
    def __init__(
        self,
        table: SessionTable,
        store: Store,
        removals: Removals,
        transitions: Transitions,
        options: WorkerOptions,
        history: History,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._table = table
        self._store = store
        self._removals = removals
        self._transitions = transitions
        self._options = options
        self._history = history
        self._clock = clock

    def recorded_sessions(self) -> Sequence[tuple[Session, str | None]]:
        """All active and lost sessions and recently ended ones, with their idempotency keys."""
        recently_ended = self._table.ended_since(self._clock() - REPORT_ENDED_S, MAX_ENDED_REPORTED)
        records = [*(live_session.record for live_session in self._table), *recently_ended]
        return [(record.session, record.idempotency_key) for record in records]

    async def adopt_lost(self, session: Session) -> Session | None:
        """Adopt a session, as lost, of an earlier worker with this one's id whose disk is gone.

        Returns None if the session's thread already has another session here.
        """
        if session.thread is not None and self._table.by_thread(session.tenant, session.thread) is not None:
            return None
        now = self._clock()
        # The idle timeout starts again: only the other worker knew when the session was last used.
        lost = reset_idle_clock(mark_worker_lost(session, now, self._options.worker_id), now)
        record = SessionRecord(lost)
        await self._store.save([record])
        self._table.add(record)
        self._history.lost(lost)
        return lost

    async def give_up(self, session_ids: Collection[str]) -> None:
        """Drop sessions that now belong to another worker. Nothing of them stays here."""
        live_sessions = [
            live_session for live_session in self._table if live_session.session.id in session_ids
        ]
        await asyncio.gather(*(self._give_up(live_session) for live_session in live_sessions))

    async def _give_up(self, live_session: LiveSession) -> None:
        """Drop a session that now belongs to another worker. Callers that wait for a command here
        get ``SandboxLost``.
        """
        async with live_session.transition_lock:
            if live_session.session.state is SessionState.ENDED or live_session.given_up:
                return
            live_session.given_up = True
            removing = live_session.sandbox_record(Purpose.REMOVING)
            workspace = live_session.session.workspace
            self._table.drop(live_session.session.id)
            reason = "another worker took over the session with a new sandbox"
            live_session.sandbox = None
            live_session.session = lose(
                live_session.session, loss_report(live_session.session, reason, self._clock())
            )
            self._history.lost(live_session.session)
            tasks = live_session.stop_tasks()
            self._removals.release(
                live_session.session.id, removing, "" if workspace is None else workspace.id
            )
            self._transitions.drop_pending(live_session.session.id)
            log.warning(
                "session given up: another worker took it over",
                session=live_session.session.id,
                generation=live_session.session.generation,
            )
            with contextlib.suppress(StorageProblem):  # the fleet tells the next process again
                await self._store.forget_session(live_session.session.id, removing)
            if tasks:
                await asyncio.wait(tasks)
