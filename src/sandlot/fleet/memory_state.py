"""What the directory in memory holds, and the steps that several of its operations share."""

from __future__ import annotations

import secrets
from collections import Counter
from dataclasses import dataclass, field

from sandlot.domain.errors import Unavailable
from sandlot.domain.session import Session, SessionState
from sandlot.fleet import rules
from sandlot.fleet.directory import (
    Room,
    Timings,
    Want,
    WorkerAt,
    WorkerCard,
    WorkerReport,
    WorkerState,
)


@dataclass(frozen=True, slots=True)
class Mark:
    """What a thread or a key leads to: a session, or the reservation of one that is being made."""

    session: str | None = None
    reservation: str | None = None


@dataclass(frozen=True, slots=True)
class Entry:
    worker: str
    session: Session
    key: str | None

    @property
    def ended(self) -> bool:
        return self.session.state is SessionState.ENDED


@dataclass(slots=True)
class Worker:
    """``token`` is None once the lease was left. ``sessions`` are in the order of their recording."""

    card: WorkerCard
    epoch: int
    token: str | None
    until: float
    report: WorkerReport | None = None
    room: dict[str, Room] = field(default_factory=dict)
    # By environment: when it is its turn, if it has room (``rules.next_turn``).
    turns: dict[str, float] = field(default_factory=dict)
    sessions: dict[str, None] = field(default_factory=dict)


@dataclass(slots=True)
class Reservation:
    worker: str
    warm: bool
    want: Want
    until: float
    before: str | None
    holders: int = 1


@dataclass(slots=True)
class Promised:
    """Of one worker, by environment."""

    free: Counter[str] = field(default_factory=Counter)
    warm: Counter[str] = field(default_factory=Counter)


@dataclass(slots=True)
class State:
    timings: Timings
    generation: str
    born: float
    settles: float
    workers: dict[str, Worker] = field(default_factory=dict)
    epochs: dict[str, int] = field(default_factory=dict)
    sessions: dict[str, Entry] = field(default_factory=dict)
    # Ended sessions, and when they are forgotten.
    ended: dict[str, float] = field(default_factory=dict)
    threads: dict[tuple[str, str | None], Mark] = field(default_factory=dict)
    keys: dict[tuple[str, str | None], Mark] = field(default_factory=dict)
    reservations: dict[str, Reservation] = field(default_factory=dict)
    takeovers: dict[str, str] = field(default_factory=dict)
    # By environment: the turn of the last create.
    turns: dict[str, float] = field(default_factory=dict)

    # --- time ---------------------------------------------------------------------------------

    def check_settled(self, now: float) -> None:
        if now < self.settles:
            raise rules.unsettled(self.settles - now)

    def keep_settling(self, now: float) -> None:
        self.settles = rules.still_settling_until(self.settles, self.born, now, self.timings.lease_s)

    def at(self, worker_id: str, now: float) -> WorkerAt:
        worker = self.workers.get(worker_id)
        if worker is None:
            return WorkerAt(worker_id, "", 0, WorkerState.GONE)
        state = rules.state_at(now, worker.until, self.timings.lost_after_s)
        return WorkerAt(worker_id, worker.card.url, worker.epoch, state, max(0.0, now - worker.until))

    def late(self, worker_id: str, now: float) -> Unavailable:
        worker = self.workers.get(worker_id)
        left = 0.0 if worker is None else max(0.0, worker.until + self.timings.lost_after_s - now)
        return rules.late(worker_id, left)

    # --- what it holds ------------------------------------------------------------------------

    def of_tenant(self, tenant: str) -> list[Entry]:
        return [
            entry for entry in self.sessions.values() if entry.session.tenant == tenant and not entry.ended
        ]

    def reserved(self, tenant: str) -> int:
        """Places that are promised and count for the quota: a take-over's session is counted already."""
        return sum(
            found.want.tenant == tenant and found.want.takes_over is None
            for found in self.reservations.values()
        )

    def promised(self, worker_id: str) -> Promised:
        promised = Promised()
        for found in self.reservations.values():
            if found.worker == worker_id:
                promised.free[found.want.environment] += found.want.units
                promised.warm[found.want.environment] += found.warm
        return promised

    # --- reservations -------------------------------------------------------------------------

    def reserve(self, reservation: Reservation) -> str:
        name, want = secrets.token_hex(16), reservation.want
        self.reservations[name] = reservation
        self._lift(reservation, -1)
        if want.takes_over is not None:
            self.takeovers[want.takes_over] = name
            return name
        if want.thread is not None:
            self.threads[want.tenant, want.thread] = Mark(reservation=name)
        if want.idempotency_key is not None:
            self.keys[want.tenant, want.idempotency_key] = Mark(reservation=name)
        return name

    def release(self, name: str, *, refund: bool) -> None:
        """With ``refund`` the room is there again; without, a session took it."""
        found = self.reservations.pop(name)
        if refund:
            self._lift(found, 1)
        want, mark = found.want, Mark(reservation=name)
        _unmark(self.threads, (want.tenant, want.thread), mark)
        _unmark(self.keys, (want.tenant, want.idempotency_key), mark)
        if want.takes_over is not None and self.takeovers.get(want.takes_over) == name:
            del self.takeovers[want.takes_over]
        if found.before is not None and found.before in self.sessions:
            self.threads.setdefault((want.tenant, want.thread), Mark(session=found.before))

    def consume(self, worker_id: str, mark: Mark | None) -> None:
        """The promise that led to a record is kept."""
        name = mark.reservation if mark is not None else None
        if name is not None and name in self.reservations and self.reservations[name].worker == worker_id:
            self.release(name, refund=False)

    def _lift(self, reservation: Reservation, by: int) -> None:
        worker = self.workers.get(reservation.worker)
        environment = reservation.want.environment
        if worker is not None and environment in worker.room:
            room = worker.room[environment]
            units = reservation.want.units
            self.offer(worker, environment, Room(room.warm + by * reservation.warm, room.free + by * units))

    # --- room ---------------------------------------------------------------------------------

    def offer(self, worker: Worker, environment: str, room: Room) -> None:
        worker.room[environment] = room
        if room.free > 0:
            last = self.turns.get(environment, 0.0)
            worker.turns[environment] = rules.next_turn(worker.turns.get(environment), last, room.free)
        else:
            self._leave_turns(worker, environment)

    def unoffer(self, worker: Worker, environment: str) -> None:
        worker.room.pop(environment, None)
        self._leave_turns(worker, environment)

    def withdraw(self, worker: Worker) -> None:
        """No new sessions for a worker, until it reports room again."""
        for environment in list(worker.room):
            self.unoffer(worker, environment)

    def _leave_turns(self, worker: Worker, environment: str) -> None:
        if worker.turns.pop(environment, None) is not None and not any(
            environment in other.turns for other in self.workers.values()
        ):
            self.turns.pop(environment, None)

    # --- sessions -----------------------------------------------------------------------------

    def write(self, entry: Entry, old: Entry | None, forgotten_at: float) -> None:
        session = entry.session
        self.sessions[session.id] = entry
        if old is not None and old.worker in self.workers:
            self.workers[old.worker].sessions.pop(session.id, None)
        if entry.ended:
            self.ended[session.id] = forgotten_at
        else:
            self.workers[entry.worker].sessions[session.id] = None
        thread = (session.tenant, session.thread)
        if session.thread is not None and not (entry.ended and self._has_younger(thread, session)):
            self.threads[thread] = Mark(session=session.id)
        if old is not None and old.key != entry.key:
            _unmark(self.keys, (session.tenant, old.key), Mark(session=session.id))
        if entry.key is not None:
            self.keys[session.tenant, entry.key] = Mark(session=session.id)

    def _has_younger(self, thread: tuple[str, str | None], session: Session) -> bool:
        """An ended session is its thread's last only if no younger one is there."""
        mark = self.threads.get(thread)
        if mark is None:
            return False
        if mark.reservation is not None:
            return True
        other = self.sessions.get(mark.session or "")
        if other is None or other.session.id == session.id:
            return False
        return not other.ended or other.session.created_at > session.created_at

    def drop(self, session_id: str) -> None:
        entry = self.sessions.pop(session_id)
        self.ended.pop(session_id, None)
        if entry.worker in self.workers:
            self.workers[entry.worker].sessions.pop(session_id, None)
        mark = Mark(session=session_id)
        _unmark(self.threads, (entry.session.tenant, entry.session.thread), mark)
        _unmark(self.keys, (entry.session.tenant, entry.key), mark)

    def expire(self, now: float) -> None:
        for name in [name for name, found in self.reservations.items() if found.until <= now]:
            self.release(name, refund=True)
        for session_id in [name for name, at in self.ended.items() if at <= now]:
            self.drop(session_id)


def _unmark(marks: dict[tuple[str, str | None], Mark], name: tuple[str, str | None], mark: Mark) -> None:
    if marks.get(name) == mark:
        del marks[name]
