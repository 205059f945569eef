"""The state of the memory directory, and the steps that several of its operations share."""

from __future__ import annotations

import secrets
from collections import Counter
from dataclasses import dataclass, field

from sandlot.domain.callers.limits import Use, holders_of, total_use, use_of
from sandlot.domain.errors import Unavailable
from sandlot.domain.session import Session, SessionState
from sandlot.fleet.directory import rules
from sandlot.fleet.directory.contract import (
    PlacementRequest,
    Room,
    Timings,
    WorkerCard,
    WorkerRef,
    WorkerReport,
    WorkerState,
)


@dataclass(frozen=True, slots=True)
class Mark:
    """What a thread or a key points to: a session, or the reservation of a session in creation."""

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
    """A worker. ``token`` is None once it has left. ``sessions`` keeps the order of recording."""

    card: WorkerCard
    epoch: int
    token: str | None
    until: float
    report: WorkerReport | None = None
    room: dict[str, Room] = field(default_factory=dict)
    # By environment: the worker's next turn, if it has room (``rules.next_turn``).
    turns: dict[str, float] = field(default_factory=dict)
    sessions: dict[str, None] = field(default_factory=dict)


@dataclass(slots=True)
class Reservation:
    worker: str
    warm: bool
    request: PlacementRequest
    until: float
    previous: str | None
    holders: int = 1


@dataclass(slots=True)
class Promised:
    """The places that are reserved on one worker, by environment."""

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
    # Ended session → when to forget it.
    ended: dict[str, float] = field(default_factory=dict)
    threads: dict[tuple[str, str | None], Mark] = field(default_factory=dict)
    keys: dict[tuple[str, str | None], Mark] = field(default_factory=dict)
    # Tenant and name → the volume's id.
    volumes: dict[tuple[str, str], str] = field(default_factory=dict)
    reservations: dict[str, Reservation] = field(default_factory=dict)
    takeovers: dict[str, str] = field(default_factory=dict)
    # By environment: the turn of the last create.
    turns: dict[str, float] = field(default_factory=dict)
    # By rate: when the creates of the past have used it up (``domain.callers.rates``).
    due: dict[str, float] = field(default_factory=dict)

    # --- time ---------------------------------------------------------------------------------

    def check_settled(self, now: float) -> None:
        if now < self.settles:
            raise rules.unsettled(self.settles - now)

    def keep_settling(self, now: float) -> None:
        self.settles = rules.extend_settling(self.settles, self.born, now, self.timings.lease_s)

    def at(self, worker_id: str, now: float) -> WorkerRef:
        worker = self.workers.get(worker_id)
        if worker is None:
            return WorkerRef(worker_id, "", 0, WorkerState.GONE)
        state = rules.worker_state(now, worker.until, self.timings.lost_after_s)
        return WorkerRef(worker_id, worker.card.url, worker.epoch, state, max(0.0, now - worker.until))

    def late(self, worker_id: str, now: float) -> Unavailable:
        worker = self.workers.get(worker_id)
        left = 0.0 if worker is None else max(0.0, worker.until + self.timings.lost_after_s - now)
        return rules.late(worker_id, left)

    # --- lookups ------------------------------------------------------------------------------

    def of_tenant(self, tenant: str) -> list[Entry]:
        return [
            entry for entry in self.sessions.values() if entry.session.tenant == tenant and not entry.ended
        ]

    def use(self, holder: str) -> Use:
        """Of sessions and reservations. The session of a take-over is already counted."""
        total = total_use(holder, (entry.session for entry in self.sessions.values() if not entry.ended))
        for found in self.reservations.values():
            request = found.request
            if request.takes_over is None and holder in holders_of(request.tenant, request.created_by):
                total += use_of(request.limits)
        return total

    def promised(self, worker_id: str) -> Promised:
        promised = Promised()
        for found in self.reservations.values():
            if found.worker == worker_id:
                promised.free[found.request.environment] += found.request.units
                promised.warm[found.request.environment] += found.warm
        return promised

    # --- reservations -------------------------------------------------------------------------

    def reserve(self, reservation: Reservation) -> str:
        name, request = secrets.token_hex(16), reservation.request
        self.reservations[name] = reservation
        self._adjust_room(reservation, -1)
        if request.takes_over is not None:
            self.takeovers[request.takes_over] = name
            return name
        if request.thread is not None:
            self.threads[request.tenant, request.thread] = Mark(reservation=name)
        if request.idempotency_key is not None:
            self.keys[request.tenant, request.idempotency_key] = Mark(reservation=name)
        return name

    def release(self, name: str, *, refund: bool) -> None:
        """End a reservation. ``refund`` frees its room. Otherwise a session uses the room."""
        found = self.reservations.pop(name)
        if refund:
            self._adjust_room(found, 1)
        request, mark = found.request, Mark(reservation=name)
        _unmark(self.threads, (request.tenant, request.thread), mark)
        _unmark(self.keys, (request.tenant, request.idempotency_key), mark)
        if request.takes_over is not None and self.takeovers.get(request.takes_over) == name:
            del self.takeovers[request.takes_over]
        if found.previous is not None and found.previous in self.sessions:
            self.threads.setdefault((request.tenant, request.thread), Mark(session=found.previous))

    def consume(self, worker_id: str, mark: Mark | None) -> None:
        """End the reservation that led to a record, if it is on this worker.

        The session uses its room.
        """
        name = mark.reservation if mark is not None else None
        if name is not None and name in self.reservations and self.reservations[name].worker == worker_id:
            self.release(name, refund=False)

    def _adjust_room(self, reservation: Reservation, by: int) -> None:
        worker = self.workers.get(reservation.worker)
        environment = reservation.request.environment
        if worker is not None and environment in worker.room:
            room = worker.room[environment]
            units = reservation.request.units
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
        """Place no new sessions on a worker until it reports room again."""
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
        """Whether the thread has a newer session or a reservation.

        If it has, an ended session does not become the thread's last session.
        """
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
