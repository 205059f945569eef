"""The directory in the memory of one process: for tests, and for a fleet that lives in one program.

The same decisions as the scripts in Redis, one method for one script; nothing here waits, so each is atomic.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence

from sandlot.domain.errors import Unavailable
from sandlot.domain.paging import check_page, cursor, parse_cursor
from sandlot.domain.session import Session, no_session
from sandlot.fleet import rules
from sandlot.fleet.directory import (
    Beat,
    DirectoryStatus,
    Found,
    FoundPage,
    HeldPage,
    Lease,
    LostPlace,
    Place,
    Room,
    SessionEntry,
    Timings,
    Want,
    WorkerAt,
    WorkerCard,
    WorkerReport,
    WorkerState,
    WorkerStatus,
)
from sandlot.fleet.memory_state import Entry, Mark, Reservation, State, Worker


class MemoryDirectory:
    """``clock`` gives the directory's time in seconds."""

    def __init__(
        self, *, timings: Timings | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._timings = timings or Timings()
        self._clock = clock
        self._state: State | None = None

    @property
    def timings(self) -> Timings:
        return self._timings

    async def close(self) -> None:
        pass

    def empty(self) -> None:
        """As a Redis that lost everything: the next call gives birth to a new generation."""
        self._state = None

    # --- workers ------------------------------------------------------------------------------

    async def join(self, card: WorkerCard, token: str, *, last_epoch: int = 0) -> Lease:
        rules.check_worker_id(card.id)
        state, now = self._now()
        old = state.workers.get(card.id)
        last = state.epochs.get(card.id, 0)
        if old is not None and old.token not in (None, token) and now < old.until and last_epoch <= last:
            raise rules.taken_id(card.id, old.card.url, old.until - now)
        epoch = state.epochs[card.id] = max(last, last_epoch) + 1
        state.workers[card.id] = Worker(
            card, epoch, token, now + self._timings.lease_s, sessions=old.sessions if old else {}
        )
        state.keep_settling(now, self._timings.lease_s)
        return Lease(card.id, epoch, token, state.generation)

    async def report(self, lease: Lease, report: WorkerReport) -> Beat:
        state, now = self._now()
        worker = self._holder(state, lease)
        state.expire(now)
        worker.until = now + self._timings.lease_s
        worker.report = report
        worker.room = {}
        if not report.draining:
            promised = state.promised(worker.card.id)
            for environment, room in report.room.items():
                free = max(0, room.free - promised.free[environment])
                worker.room[environment] = Room(
                    min(free, max(0, room.warm - promised.warm[environment])), free
                )
        if not report.complete:
            state.keep_settling(now, self._timings.lease_s)
        return Beat(state.generation, intact=True)

    async def leave(self, lease: Lease) -> None:
        state, now = self._now()
        worker = self._holder(state, lease)
        if not worker.sessions:
            del state.workers[lease.worker_id]
            return
        worker.token, worker.until, worker.room = None, now, {}

    async def workers(self) -> Sequence[WorkerStatus]:
        state, now = self._now()
        return [
            WorkerStatus(
                self._at(state, worker_id, now),
                worker.card.version,
                worker.until - now,
                worker.report,
                len(worker.sessions),
            )
            for worker_id, worker in sorted(state.workers.items())
        ]

    # --- placing ------------------------------------------------------------------------------

    async def place(self, want: Want) -> Place | LostPlace:
        state, now = self._now()
        state.expire(now)
        lost: Session | None = None
        if want.takes_over is not None:
            known = self._known(state, now, want, Mark(session=want.takes_over), by_key=True)
            entry = state.sessions.get(want.takes_over)
            if known is None and (entry is None or entry.ended or entry.session.tenant != want.tenant):
                self._check_settled(state, now)
                raise no_session(want.takes_over)
            lost = entry.session if entry is not None else None
        else:
            known = self._known(state, now, want, state.threads.get((want.tenant, want.thread)), by_key=False)
            if known is None:
                key = state.keys.get((want.tenant, want.idempotency_key))
                known = self._known(state, now, want, key, by_key=True)
        if known is not None:
            return known
        if want.thread is not None or want.idempotency_key is not None or want.max_sessions is not None:
            self._check_settled(state, now)
        if want.max_sessions is not None and want.takes_over is None:
            counted = len(state.of_tenant(want.tenant)) + state.reserved(want.tenant)
            if counted >= want.max_sessions:
                raise rules.quota_reached(want.tenant, want.max_sessions)
        return self._reserve(state, now, want, lost)

    def _known(
        self, state: State, now: float, want: Want, mark: Mark | None, *, by_key: bool
    ) -> Place | LostPlace | None:
        if mark is None:
            return None
        if mark.reservation is not None:
            return self._follow(state, now, mark.reservation)
        assert mark.session is not None
        entry = state.sessions.get(mark.session)
        if entry is None or entry.session.tenant != want.tenant or (entry.ended and not by_key):
            return None
        at = self._at(state, entry.worker, now)
        if at.state is WorkerState.ALIVE:
            return Place(at, known=True)
        if at.state is WorkerState.LATE:
            raise self._late(state, entry.worker, now)
        if entry.ended:
            return None
        taking = state.takeovers.get(mark.session)
        following = self._follow(state, now, taking) if taking else None
        if following is None and want.takes_over != mark.session:
            return LostPlace(entry.session, at)
        return following

    def _follow(self, state: State, now: float, reservation: str) -> Place | None:
        found = state.reservations.get(reservation)
        if found is None:
            return None
        at = self._at(state, found.worker, now)
        if found.until <= now or at.state is WorkerState.GONE:
            state.release(reservation, refund=True)
            return None
        if at.state is not WorkerState.ALIVE:
            raise self._late(state, found.worker, now)
        found.holders += 1
        before = state.sessions.get(found.before or "")
        lost = state.sessions.get(found.want.takes_over or "")
        return Place(
            at,
            known=True,
            reservation=reservation,
            before=before.session if before else None,
            lost=lost.session if lost else None,
        )

    def _reserve(self, state: State, now: float, want: Want, lost: Session | None) -> Place:
        offers = {
            worker_id: worker.room[want.environment]
            for worker_id, worker in state.workers.items()
            if want.environment in worker.room and now < worker.until
        }
        # Of equals the last by name, as a sorted set of Redis has it.
        best = max(
            offers.keys() - set(want.avoid),
            key=lambda name: (offers[name].warm > 0, offers[name].free, name),
            default=None,
        )
        if best is None or offers[best].free < 1:
            raise rules.no_room(want.environment, offered=bool(offers))
        thread = state.threads.get((want.tenant, want.thread)) if want.takes_over is None else None
        before = state.sessions.get(thread.session) if thread is not None and thread.session else None
        reservation = Reservation(
            best,
            warm=offers[best].warm > 0,
            want=want,
            until=now + self._timings.reservation_s,
            before=before.session.id if before else None,
        )
        name = state.reserve(reservation)
        return Place(
            self._at(state, best, now),
            known=False,
            reservation=name,
            before=before.session if before else None,
            lost=lost,
        )

    async def give_back(self, reservation: str) -> bool:
        state, _ = self._now()
        found = state.reservations.get(reservation)
        if found is None:
            return False
        found.holders -= 1
        if found.holders > 0:
            return False
        state.release(reservation, refund=True)
        return True

    # --- sessions -----------------------------------------------------------------------------

    async def record(self, lease: Lease, entries: Sequence[SessionEntry]) -> frozenset[str]:
        state, now = self._now()
        self._holder(state, lease)
        state.expire(now)
        taken = set()
        for item in entries:
            kept = item.reservation is None or item.reservation in state.reservations
            state.consume(lease.worker_id, Mark(reservation=item.reservation))
            session, old = item.session, state.sessions.get(item.session.id)
            # A take-over whose place is no longer kept: the session's own worker came back with it.
            revoked = (
                not kept
                and old is not None
                and old.worker != lease.worker_id
                and self._at(state, old.worker, now).state is not WorkerState.GONE
            )
            entry = Entry(lease.worker_id, session, item.idempotency_key)
            mark = state.threads.get((session.tenant, session.thread))
            if (
                revoked
                or (old is not None and self._stands(state, now, old, entry))
                or (not entry.ended and self._thread_is_elsewhere(state, now, mark, entry))
            ):
                taken.add(session.id)
            elif old is None or old.worker != entry.worker or not _stale(old, entry):
                if not entry.ended:  # which is not what the thread's next reservation waits for
                    state.consume(lease.worker_id, mark)
                    state.consume(lease.worker_id, state.keys.get((session.tenant, entry.key)))
                state.consume(lease.worker_id, Mark(reservation=state.takeovers.get(session.id)))
                if old is not None and old.worker == lease.worker_id and session.id in state.takeovers:
                    state.release(state.takeovers[session.id], refund=True)
                forgotten_at = now + self._timings.remember_ended_s
                state.write(entry, old, forgotten_at)
        return frozenset(taken)

    def _stands(self, state: State, now: float, old: Entry, entry: Entry) -> bool:
        """Whether a recorded session of another worker stands before the one that comes."""
        if old.worker == entry.worker:
            return False
        ahead = old.session.generation - entry.session.generation
        return (
            ahead > 0
            or (old.ended and not entry.ended)
            or (ahead == 0 and self._at(state, old.worker, now).state is not WorkerState.GONE)
        )

    def _thread_is_elsewhere(self, state: State, now: float, mark: Mark | None, entry: Entry) -> bool:
        other = state.sessions.get(mark.session) if mark is not None and mark.session else None
        if other is None or other.session.id == entry.session.id or other.ended:
            return False
        if other.worker == entry.worker:
            return other.session.created_at > entry.session.created_at
        return self._at(state, other.worker, now).state is not WorkerState.GONE

    async def forget(self, lease: Lease, session_ids: Sequence[str]) -> None:
        state, _ = self._now()
        self._holder(state, lease)
        for session_id in session_ids:
            entry = state.sessions.get(session_id)
            if entry is not None and entry.worker == lease.worker_id:
                state.drop(session_id)

    async def held(self, worker_id: str, *, after: str | None = None) -> HeldPage:
        state, _ = self._now()
        worker = state.workers.get(worker_id)
        return HeldPage(tuple(worker.sessions) if worker else (), None)

    async def find(self, session_id: str) -> Found | None:
        state, now = self._now()
        entry = state.sessions.get(session_id)
        if entry is None:
            self._check_settled(state, now)
            return None
        return Found(entry.session, self._at(state, entry.worker, now))

    async def page(
        self, tenant: str, *, thread: str | None = None, after: str | None = None, limit: int = 100
    ) -> FoundPage:
        check_page(limit)
        if after is not None:
            parse_cursor(after)
        state, now = self._now()
        entries = state.of_tenant(tenant)
        if thread is not None:
            mark = state.threads.get((tenant, thread), Mark())
            entries = [entry for entry in entries if entry.session.id == mark.session]
        if thread is None or not entries:
            self._check_settled(state, now)
        entries = sorted(
            (entry for entry in entries if after is None or cursor(entry.session) > after),
            key=lambda entry: cursor(entry.session),
        )
        found = tuple(Found(entry.session, self._at(state, entry.worker, now)) for entry in entries[:limit])
        return FoundPage(found, cursor(found[-1].session) if len(entries) > limit else None)

    async def bury(self, ended: Session) -> bool:
        state, now = self._now()
        entry = state.sessions.get(ended.id)
        if entry is None:
            self._check_settled(state, now)
            return False
        if entry.ended:
            return False
        if self._at(state, entry.worker, now).state is not WorkerState.GONE or ended.id in state.takeovers:
            raise rules.not_gone(ended.id, entry.worker)
        state.write(Entry(rules.NOBODY, ended, None), entry, now + self._timings.remember_lost_s)
        return True

    # --- the directory itself -----------------------------------------------------------------

    async def status(self) -> DirectoryStatus:
        state, now = self._now()
        live = sum(not entry.ended for entry in state.sessions.values())
        made = sum(found.until > now for found in state.reservations.values())
        return DirectoryStatus(state.generation, now >= state.settles, live, made)

    async def sweep(self, limit: int = 100) -> int:
        state, now = self._now()
        before = now - self._timings.lost_after_s - self._timings.remember_lost_s
        swept = 0
        for worker_id, worker in sorted(state.workers.items(), key=lambda item: item[1].until):
            if worker.until > before or swept >= limit:
                break
            for session_id in list(worker.sessions)[: limit - swept]:
                state.drop(session_id)
                swept += 1
            if not worker.sessions:
                del state.workers[worker_id]
        return swept

    # --- what all do --------------------------------------------------------------------------

    def _now(self) -> tuple[State, float]:
        now = self._clock()
        if self._state is None:
            self._state = State(secrets.token_hex(8), born=now, settles=now + self._timings.lease_s)
        return self._state, now

    def _check_settled(self, state: State, now: float) -> None:
        if now < state.settles:
            raise rules.unsettled(state.settles - now)

    def _holder(self, state: State, lease: Lease) -> Worker:
        worker = state.workers.get(lease.worker_id)
        if (
            worker is None
            or worker.epoch < lease.epoch
            or (worker.epoch == lease.epoch and worker.token is None)
        ):
            raise rules.unknown_lease(lease.worker_id, lease.epoch)
        if (worker.epoch, worker.token) != (lease.epoch, lease.token):
            raise rules.replaced(lease.worker_id, lease.epoch)
        return worker

    def _at(self, state: State, worker_id: str, now: float) -> WorkerAt:
        worker = state.workers.get(worker_id)
        if worker is None:
            return WorkerAt(worker_id, "", 0, WorkerState.GONE)
        return WorkerAt(
            worker_id,
            worker.card.url,
            worker.epoch,
            rules.state_at(now, worker.until, self._timings.lost_after_s),
        )

    def _late(self, state: State, worker_id: str, now: float) -> Unavailable:
        worker = state.workers.get(worker_id)
        return rules.late(
            worker_id, max(0.0, worker.until + self._timings.lost_after_s - now) if worker else 0.0
        )


def _stale(old: Entry, entry: Entry) -> bool:
    """What was written later, or has ended, is not undone by a write that comes late. An end counts also
    where the next generation stands: that one was refused to its worker, and never was. Two on, it lived
    elsewhere meanwhile.
    """
    if old.ended and not entry.ended:
        return True
    return old.session.generation > entry.session.generation + entry.ended
