"""Decides whose record of a session counts in the memory directory. Twin of ``record.lua``."""

from __future__ import annotations

from collections.abc import Sequence

from sandlot.fleet.directory.contract import SessionEntry, WorkerState
from sandlot.fleet.directory.memory_state import Entry, Mark, State


def record(state: State, now: float, worker_id: str, entries: Sequence[SessionEntry]) -> frozenset[str]:
    state.expire(now)
    taken = set()
    for item in entries:
        kept = item.reservation is None or item.reservation in state.reservations
        state.consume(worker_id, Mark(reservation=item.reservation))
        session, old = item.session, state.sessions.get(item.session.id)
        # The reservation of this take-over has expired, and the session's own worker has come back.
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
            or (old is not None and _outranks(state, now, old, entry))
            or (not entry.ended and _thread_is_elsewhere(state, now, mark, entry))
        ):
            taken.add(session.id)
        elif old is None or old.worker != entry.worker or not _is_stale(old, entry):
            if not entry.ended:  # the thread's next reservation does not wait for an ended session
                state.consume(worker_id, mark)
                state.consume(worker_id, state.keys.get((session.tenant, entry.key)))
            state.consume(worker_id, Mark(reservation=state.takeovers.get(session.id)))
            if old is not None and old.worker == worker_id and session.id in state.takeovers:
                state.release(state.takeovers[session.id], refund=True)
            forgotten_at = now + state.timings.remember_ended_s
            state.write(entry, old, forgotten_at)
    return frozenset(taken)


def _outranks(state: State, now: float, old: Entry, entry: Entry) -> bool:
    """Whether the existing record of another worker takes precedence over the new one."""
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


def _is_stale(old: Entry, entry: Entry) -> bool:
    """Whether a write arrives late and must not undo a newer record or an end.

    An end still counts if the recorded generation is one higher: the directory refused that
    generation to its worker, so it was never created. If the recorded generation is two or more
    higher, the session has lived on another worker meanwhile.
    """
    if old.ended and not entry.ended:
        return True
    return old.session.generation > entry.session.generation + entry.ended
