"""A worker's sessions in memory: live ones by id and thread, and ended ones with their reasons."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from sandlot.domain.errors import Unavailable
from sandlot.domain.session import Predecessor, Session, SessionState
from sandlot.domain.session_states import ended_error, no_session_error, predecessor
from sandlot.worker.sessions.live_session import LiveSession
from sandlot.worker.store.database import SessionRecord

# How many ended sessions are remembered at most, whatever their age.
MAX_ENDED = 10_000


class SessionTable:
    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        # Session → tenant, of sessions that are not in the table yet. The fleet may already know of them.
        self.opening: dict[str, str] = {}
        self._live_sessions: dict[str, LiveSession] = {}
        self._ended: dict[str, SessionRecord] = {}
        self._threads: dict[tuple[str, str], LiveSession] = {}
        self._keys: dict[tuple[str, str], str] = {}
        self._last_ended: dict[tuple[str, str], str] = {}  # thread → id of its last ended session

    def __len__(self) -> int:
        return len(self._live_sessions)

    def __iter__(self) -> Iterator[LiveSession]:
        """Active, lost and hibernated sessions, oldest first."""
        return iter(list(self._live_sessions.values()))

    def get(self, tenant: str, session_id: str) -> LiveSession:
        live_session = self._live_sessions.get(session_id)
        if live_session is not None and live_session.session.tenant == tenant:
            return live_session
        if self.opening.get(session_id) == tenant:
            raise Unavailable(
                f"Session {session_id} is still being opened. Retry.",
                retry_after_s=0.2,
                details={"reason": "opening"},
            )
        record = self._ended.get(session_id)
        if record is not None and record.session.tenant == tenant:
            raise ended_error(record.session)
        raise no_session_error(session_id)

    def has_workspace(self, workspace_id: str) -> bool:
        """Whether a session that has not ended has this workspace."""
        return any(
            live_session.session.workspace is not None and live_session.session.workspace.id == workspace_id
            for live_session in self._live_sessions.values()
        )

    @property
    def hibernated(self) -> int:
        """How many sessions have files and no sandbox, and need no room on the machine."""
        return sum(
            live_session.session.state is SessionState.HIBERNATED
            for live_session in self._live_sessions.values()
        )

    def by_id(self, session_id: str) -> LiveSession | None:
        """A session of any tenant that has not ended, or None. Never for a caller's request."""
        return self._live_sessions.get(session_id)

    def find(self, tenant: str, session_id: str) -> LiveSession | None:
        """A session that has not ended, or None."""
        live_session = self._live_sessions.get(session_id)
        return live_session if live_session is not None and live_session.session.tenant == tenant else None

    def ended(self, session_id: str) -> Session | None:
        record = self._ended.get(session_id)
        return None if record is None else record.session

    def ended_since(self, time: float, limit: int) -> list[SessionRecord]:
        """Sessions that ended since a time: the newest ones, at most ``limit``."""
        recent = (record for record in self._ended.values() if (record.session.ended_at or 0.0) >= time)
        newest_first = sorted(recent, key=lambda record: -(record.session.ended_at or 0.0))
        return newest_first[:limit]

    def by_thread(self, tenant: str, thread: str) -> LiveSession | None:
        return self._threads.get((tenant, thread))

    def last_ended_in_thread(self, tenant: str, thread: str | None) -> Predecessor | None:
        """The thread's last ended session, if it is still remembered."""
        if thread is None or (tenant, thread) not in self._last_ended:
            return None
        return predecessor(self._ended[self._last_ended[tenant, thread]].session)

    def by_key(self, tenant: str, key: str) -> SessionRecord | None:
        """The session that was created with this idempotency key, if it is still remembered."""
        session_id = self._keys.get((tenant, key), "")
        live_session = self._live_sessions.get(session_id)
        return self._ended.get(session_id) if live_session is None else live_session.record

    def add(self, record: SessionRecord) -> LiveSession:
        session = record.session
        if session.id in self._ended:  # it went on at another worker and is back
            self._forget(session.id)
        live_session = LiveSession(record, self._clock)
        self._live_sessions[session.id] = live_session
        if session.thread is not None:
            self._threads[session.tenant, session.thread] = live_session
        if record.idempotency_key is not None:
            self._keys[session.tenant, record.idempotency_key] = session.id
        return live_session

    def add_ended(self, record: SessionRecord) -> None:
        """Add a session that has ended. If it was live, it is no longer."""
        session = record.session
        assert session.state is SessionState.ENDED
        live_session = self._live_sessions.pop(session.id, None)
        if session.thread is not None:
            if live_session is self._threads.get((session.tenant, session.thread)):
                self._threads.pop((session.tenant, session.thread), None)
            last_ended = self.last_ended_in_thread(session.tenant, session.thread)
            if last_ended is None or last_ended.ended_at <= (session.ended_at or 0.0):
                self._last_ended[session.tenant, session.thread] = session.id
        if record.idempotency_key is not None:
            self._keys[session.tenant, record.idempotency_key] = session.id
        self._ended[session.id] = record
        if len(self._ended) > MAX_ENDED:
            self._forget(next(iter(self._ended)))

    def drop(self, session_id: str) -> None:
        """Remove a live session without a trace, as if it had never been here."""
        live_session = self._live_sessions.pop(session_id)
        session, key = live_session.session, live_session.record.idempotency_key
        thread = (session.tenant, session.thread or "")
        if self._threads.get(thread) is live_session:
            del self._threads[thread]
        if key is not None and self._keys.get((session.tenant, key)) == session.id:
            del self._keys[session.tenant, key]

    def forget_ended(self, before: float) -> None:
        for session_id, record in list(self._ended.items()):
            if (record.session.ended_at or 0.0) < before:
                self._forget(session_id)

    def _forget(self, session_id: str) -> None:
        record = self._ended.pop(session_id)
        if record.idempotency_key is not None:
            self._keys.pop((record.session.tenant, record.idempotency_key), None)
        thread = (record.session.tenant, record.session.thread or "")
        if self._last_ended.get(thread) == session_id:
            del self._last_ended[thread]
