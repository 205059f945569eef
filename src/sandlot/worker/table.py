"""The sessions that a worker knows, in memory: live ones by id and thread, ended ones to be told of."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from sandlot.domain.errors import Unavailable
from sandlot.domain.session import Predecessor, Session, SessionState, ended_error, no_session, predecessor
from sandlot.worker.live import Live
from sandlot.worker.store import SessionRecord

# Ended sessions that are remembered at most, whatever their age.
MAX_ENDED = 10_000


class SessionTable:
    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        # Sessions that are not here yet, but of which others may have heard.
        self.opening: set[str] = set()
        self._live: dict[str, Live] = {}
        self._ended: dict[str, SessionRecord] = {}
        self._threads: dict[tuple[str, str], Live] = {}
        self._keys: dict[tuple[str, str], str] = {}
        self._before: dict[tuple[str, str], str] = {}  # a thread's session that ended last

    def __len__(self) -> int:
        return len(self._live)

    def __iter__(self) -> Iterator[Live]:
        """Live and lost ones, oldest first."""
        return iter(list(self._live.values()))

    def get(self, tenant: str, session_id: str) -> Live:
        live = self._live.get(session_id)
        if live is not None and live.session.tenant == tenant:
            return live
        if session_id in self.opening:
            raise Unavailable(
                f"session {session_id} is being opened; retry",
                retry_after_s=0.2,
                details={"reason": "opening"},
            )
        record = self._ended.get(session_id)
        if record is not None and record.session.tenant == tenant:
            raise ended_error(record.session)
        raise no_session(session_id)

    def find(self, tenant: str, session_id: str) -> Live | None:
        """A live or lost one."""
        live = self._live.get(session_id)
        return live if live is not None and live.session.tenant == tenant else None

    def ended(self, session_id: str) -> Session | None:
        record = self._ended.get(session_id)
        return None if record is None else record.session

    def ended_since(self, time: float, most: int) -> list[SessionRecord]:
        """The last ones, if there are more."""
        lately = (record for record in self._ended.values() if (record.session.ended_at or 0.0) >= time)
        newest_first = sorted(lately, key=lambda record: -(record.session.ended_at or 0.0))
        return newest_first[:most]

    def of_thread(self, tenant: str, thread: str) -> Live | None:
        return self._threads.get((tenant, thread))

    def before_in_thread(self, tenant: str, thread: str | None) -> Predecessor | None:
        """The thread's session that ended last, if it is remembered."""
        if thread is None or (tenant, thread) not in self._before:
            return None
        return predecessor(self._ended[self._before[tenant, thread]].session)

    def of_key(self, tenant: str, key: str) -> SessionRecord | None:
        """The session that was made under this idempotency key, if it is remembered."""
        session_id = self._keys.get((tenant, key), "")
        live = self._live.get(session_id)
        return self._ended.get(session_id) if live is None else live.record

    def add(self, record: SessionRecord) -> Live:
        session = record.session
        if session.id in self._ended:  # it lived on elsewhere, and is back
            self._forget(session.id)
        live = Live(record, self._clock)
        self._live[session.id] = live
        if session.thread is not None:
            self._threads[session.tenant, session.thread] = live
        if record.idempotency_key is not None:
            self._keys[session.tenant, record.idempotency_key] = session.id
        return live

    def remember(self, record: SessionRecord) -> None:
        """A session that has ended: no longer live, but known."""
        session = record.session
        assert session.state is SessionState.ENDED
        live = self._live.pop(session.id, None)
        if session.thread is not None:
            if live is self._threads.get((session.tenant, session.thread)):
                self._threads.pop((session.tenant, session.thread), None)
            before = self.before_in_thread(session.tenant, session.thread)
            if before is None or before.ended_at <= (session.ended_at or 0.0):
                self._before[session.tenant, session.thread] = session.id
        if record.idempotency_key is not None:
            self._keys[session.tenant, record.idempotency_key] = session.id
        self._ended[session.id] = record
        if len(self._ended) > MAX_ENDED:
            self._forget(next(iter(self._ended)))

    def drop(self, session_id: str) -> None:
        """A live session that was never here."""
        live = self._live.pop(session_id)
        session, key = live.session, live.record.idempotency_key
        thread = (session.tenant, session.thread or "")
        if self._threads.get(thread) is live:
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
        if self._before.get(thread) == session_id:
            del self._before[thread]
