"""Whose record of a session counts, in the directory in memory: as ``scripts/record.lua`` decides it."""

from __future__ import annotations

from collections.abc import Sequence

from sandlot.fleet.directory import SessionEntry, WorkerState
from sandlot.fleet.memory_state import Entry, Mark, State


def record(state: State, now: float, worker_id: str, entries: Sequence[SessionEntry]) -> frozenset[str]:
    state.expire(now)
    taken = set()
    for item in entries:
        kept = item.reservation is None or item.reservation in state.reservations
        state.consume(worker_id, Mark(reservation=item.reservation))
        session, old = item.session, state.sessions.get(item.session.id)
        # A take-over whose place is no longer kept: the session's own worker came back with it.
        revoked = (
            not kept
            and old is not None
            and old.worker != worker_id
            and state.at(old.worker, now).state is not WorkerState.GONE
        )
        entry = Entry(worker_id, session, item.idempotency_key)
        mark = state.threads.get((session.tenant, session.thread))
        if (
            revoked
            or (old is not None and _stands(state, now, old, entry))
            or (not entry.ended and _thread_is_elsewhere(state, now, mark, entry))
        ):
            taken.add(session.id)
        elif old is None or old.worker != entry.worker or not _stale(old, entry):
            if not entry.ended:  # which is not what the thread's next reservation waits for
                state.consume(worker_id, mark)
                state.consume(worker_id, state.keys.get((session.tenant, entry.key)))
            state.consume(worker_id, Mark(reservation=state.takeovers.get(session.id)))
            if old is not None and old.worker == worker_id and session.id in state.takeovers:
                state.release(state.takeovers[session.id], refund=True)
            forgotten_at = now + state.timings.remember_ended_s
            state.write(entry, old, forgotten_at)
    return frozenset(taken)


def _stands(state: State, now: float, old: Entry, entry: Entry) -> bool:
    """Whether a recorded session of another worker stands before the one that comes."""
    if old.worker == entry.worker:
        return False
    ahead = old.session.generation - entry.session.generation
    return (
        ahead > 0
        or (old.ended and not entry.ended)
        or (ahead == 0 and state.at(old.worker, now).state is not WorkerState.GONE)
    )


def _thread_is_elsewhere(state: State, now: float, mark: Mark | None, entry: Entry) -> bool:
    other = state.sessions.get(mark.session) if mark is not None and mark.session else None
    if other is None or other.session.id == entry.session.id or other.ended:
        return False
    if other.worker == entry.worker:
        return other.session.created_at > entry.session.created_at
    return state.at(other.worker, now).state is not WorkerState.GONE


def _stale(old: Entry, entry: Entry) -> bool:
    """What was written later, or has ended, is not undone by a write that comes late. An end counts also
    where the next generation stands: that one was refused to its worker, and never was. Two on, it lived
    elsewhere meanwhile.
    """
    if old.ended and not entry.ended:
        return True
    return old.session.generation > entry.session.generation + entry.ended
