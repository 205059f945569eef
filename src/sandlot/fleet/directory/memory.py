"""A directory in the memory of one process, for tests and for fleets inside one program.

It makes the same decisions as the Redis scripts, one method per script. No method awaits anything,
so each one is atomic.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence

from sandlot.domain.callers.limits import Use
from sandlot.domain.paging import check_page, parse_place, place_of
from sandlot.domain.session import Session
from sandlot.fleet.directory import rules
from sandlot.fleet.directory.contract import (
    DirectoryStatus,
    FoundPage,
    FoundSession,
    HeldPage,
    LostPlace,
    Place,
    PlacementRequest,
    ReportReply,
    Room,
    SessionEntry,
    Timings,
    WorkerCard,
    WorkerReport,
    WorkerState,
    WorkerStatus,
)
from sandlot.fleet.directory.lease import Lease
from sandlot.fleet.directory.memory_placing import place
from sandlot.fleet.directory.memory_records import record
from sandlot.fleet.directory.memory_state import Entry, Mark, State, Worker
from sandlot.fleet.directory.volume_names import VolumeEntry


class MemoryDirectory:
    """A ``Directory`` in memory. ``clock`` returns the directory's time in seconds."""

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
        """Lose everything, like an emptied Redis. The next call starts a new generation."""
        self._state = None

    # --- workers ------------------------------------------------------------------------------

    async def join(self, card: WorkerCard, token: str, *, last_epoch: int = 0) -> Lease:
        rules.check_worker_id(card.id)
        state, now = self._state_and_time()
        old = state.workers.get(card.id)
        last = state.epochs.get(card.id, 0)
        if old is not None and old.token not in (None, token) and now < old.until and last_epoch <= last:
            raise rules.taken_id(card.id, old.card.url, old.until - now)
        epoch = state.epochs[card.id] = max(last, last_epoch) + 1
        if old is not None:
            state.withdraw(old)
        state.workers[card.id] = Worker(
            card, epoch, token, now + self._timings.lease_s, sessions=old.sessions if old else {}
        )
        state.keep_settling(now)
        return Lease(card.id, epoch, token, state.generation)

    async def report(self, lease: Lease, report: WorkerReport) -> ReportReply:
        state, now = self._state_and_time()
        worker = self._lease_holder(state, lease)
        state.expire(now)
        worker.until = now + self._timings.lease_s
        worker.report = report
        for environment in worker.room.keys() - (() if report.draining else report.room.keys()):
            state.unoffer(worker, environment)
        if not report.draining:
            promised = state.promised(worker.card.id)
            for environment, room in report.room.items():
                free = max(0, room.free - promised.free[environment])
                warm = min(free, max(0, room.warm - promised.warm[environment]))
                state.offer(worker, environment, Room(warm, free))
        if not report.complete:
            state.keep_settling(now)
        return ReportReply(state.generation, intact=True)

    async def leave(self, lease: Lease) -> None:
        state, now = self._state_and_time()
        worker = self._lease_holder(state, lease)
        state.withdraw(worker)
        if not worker.sessions:
            del state.workers[lease.worker_id]
            return
        worker.token, worker.until = None, now

    async def workers(self) -> Sequence[WorkerStatus]:
        state, now = self._state_and_time()
        return [
            WorkerStatus(
                state.at(worker_id, now),
                worker.card.version,
                worker.until - now,
                worker.report,
                len(worker.sessions),
            )
            for worker_id, worker in sorted(state.workers.items())
        ]

    # --- placing ------------------------------------------------------------------------------

    async def place(self, want: PlacementRequest) -> Place | LostPlace:
        state, now = self._state_and_time()
        return place(state, now, want)

    async def give_back(self, reservation: str) -> bool:
        state, _ = self._state_and_time()
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
        state, now = self._state_and_time()
        self._lease_holder(state, lease)
        return record(state, now, lease.worker_id, entries)

    async def forget(self, lease: Lease, session_ids: Sequence[str]) -> None:
        state, _ = self._state_and_time()
        self._lease_holder(state, lease)
        for session_id in session_ids:
            entry = state.sessions.get(session_id)
            if entry is not None and entry.worker == lease.worker_id:
                state.drop(session_id)

    async def held(self, worker_id: str, *, after: str | None = None) -> HeldPage:
        state, _ = self._state_and_time()
        worker = state.workers.get(worker_id)
        return HeldPage(tuple(worker.sessions) if worker else (), None)

    async def find(self, session_id: str) -> FoundSession | None:
        state, now = self._state_and_time()
        entry = state.sessions.get(session_id)
        if entry is None:
            state.check_settled(now)
            return None
        return FoundSession(entry.session, state.at(entry.worker, now))

    async def page(
        self, tenant: str, *, thread: str | None = None, after: str | None = None, limit: int = 100
    ) -> FoundPage:
        check_page(limit)
        if after is not None:
            parse_place(after, "ses")
        state, now = self._state_and_time()
        entries = state.of_tenant(tenant)
        if thread is not None:
            mark = state.threads.get((tenant, thread), Mark())
            entries = [entry for entry in entries if entry.session.id == mark.session]
        if thread is None or not entries:
            state.check_settled(now)
        entries = sorted(
            (entry for entry in entries if after is None or place_of(entry.session) > after),
            key=lambda entry: place_of(entry.session),
        )
        found = tuple(FoundSession(entry.session, state.at(entry.worker, now)) for entry in entries[:limit])
        return FoundPage(found, place_of(found[-1].session) if len(entries) > limit else None)

    async def bury(self, ended: Session) -> bool:
        state, now = self._state_and_time()
        entry = state.sessions.get(ended.id)
        if entry is None:
            state.check_settled(now)
            return False
        if entry.ended:
            return False
        if state.at(entry.worker, now).state is not WorkerState.GONE or ended.id in state.takeovers:
            raise rules.not_gone(ended.id, entry.worker)
        state.write(Entry(rules.NO_WORKER, ended, None), entry, now + self._timings.remember_lost_s)
        return True

    # --- volumes ------------------------------------------------------------------------------

    async def record_volumes(self, lease: Lease, entries: Sequence[VolumeEntry]) -> frozenset[str]:
        state, _ = self._state_and_time()
        self._lease_holder(state, lease)
        return frozenset(
            entry.id
            for entry in entries
            if state.volumes.setdefault((entry.tenant, entry.name), entry.id) != entry.id
        )

    async def forget_volume(self, lease: Lease, entry: VolumeEntry) -> None:
        state, _ = self._state_and_time()
        self._lease_holder(state, lease)
        _forget_volume(state, entry)

    async def find_volume(self, tenant: str, name: str) -> str | None:
        state, now = self._state_and_time()
        found = state.volumes.get((tenant, name))
        if found is None:
            state.check_settled(now)
        return found

    async def bury_volume(self, entry: VolumeEntry, worker_id: str) -> None:
        state, now = self._state_and_time()
        if state.at(worker_id, now).state is not WorkerState.GONE:
            raise rules.volume_not_gone(entry.name, worker_id)
        _forget_volume(state, entry)

    # --- the directory itself -----------------------------------------------------------------

    async def status(self, tenant: str | None = None) -> DirectoryStatus:
        state, now = self._state_and_time()
        sessions = sum(
            not entry.ended and tenant in (None, entry.session.tenant) for entry in state.sessions.values()
        )
        reservations = sum(found.until > now for found in state.reservations.values())
        return DirectoryStatus(state.generation, now >= state.settles, sessions, reservations)

    async def use(self, holder: str) -> Use:
        state, _ = self._state_and_time()
        return state.use(holder)

    async def sweep(self, limit: int = 100) -> int:
        state, now = self._state_and_time()
        cutoff = now - self._timings.lost_after_s - self._timings.remember_lost_s
        swept = 0
        for worker_id, worker in sorted(state.workers.items(), key=lambda item: item[1].until):
            if worker.until > cutoff or swept >= limit:
                break
            for session_id in list(worker.sessions)[: limit - swept]:
                state.drop(session_id)
                swept += 1
            if not worker.sessions:
                state.withdraw(worker)
                del state.workers[worker_id]
        return swept

    # --- shared steps -------------------------------------------------------------------------

    def _state_and_time(self) -> tuple[State, float]:
        now = self._clock()
        if self._state is None:
            self._state = State(
                self._timings, secrets.token_hex(8), born=now, settles=now + self._timings.lease_s
            )
        return self._state, now

    def _lease_holder(self, state: State, lease: Lease) -> Worker:
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


def _forget_volume(state: State, entry: VolumeEntry) -> None:
    if state.volumes.get((entry.tenant, entry.name)) == entry.id:
        del state.volumes[entry.tenant, entry.name]
