"""Where a create goes, in the directory in memory: as ``scripts/place.lua`` decides it."""

from __future__ import annotations

from sandlot.domain.session import Session, no_session
from sandlot.fleet import rules
from sandlot.fleet.directory import LostPlace, Place, Want, WorkerState
from sandlot.fleet.memory_state import Mark, Reservation, State


def place(state: State, now: float, want: Want) -> Place | LostPlace:
    state.expire(now)
    lost: Session | None = None
    if want.takes_over is not None:
        known = _known(state, now, want, Mark(session=want.takes_over), by_key=True)
        entry = state.sessions.get(want.takes_over)
        if known is None and (entry is None or entry.ended or entry.session.tenant != want.tenant):
            state.check_settled(now)
            raise no_session(want.takes_over)
        lost = entry.session if entry is not None else None
    else:
        known = _known(state, now, want, state.threads.get((want.tenant, want.thread)), by_key=False)
        if known is None:
            key = state.keys.get((want.tenant, want.idempotency_key))
            known = _known(state, now, want, key, by_key=True)
    if known is not None:
        return known
    if want.thread is not None or want.idempotency_key is not None or want.max_sessions is not None:
        state.check_settled(now)
    if want.max_sessions is not None and want.takes_over is None:
        counted = len(state.of_tenant(want.tenant)) + state.reserved(want.tenant)
        if counted >= want.max_sessions:
            raise rules.quota_reached(want.tenant, want.max_sessions)
    return _reserve(state, now, want, lost)


def _known(
    state: State, now: float, want: Want, mark: Mark | None, *, by_key: bool
) -> Place | LostPlace | None:
    if mark is None:
        return None
    if mark.reservation is not None:
        return _follow(state, now, mark.reservation)
    assert mark.session is not None
    entry = state.sessions.get(mark.session)
    if entry is None or entry.session.tenant != want.tenant or (entry.ended and not by_key):
        return None
    at = state.at(entry.worker, now)
    if at.state is WorkerState.ALIVE:
        return Place(at, known=True)
    if at.state is WorkerState.LATE:
        raise state.late(entry.worker, now)
    if entry.ended:
        return None
    taking = state.takeovers.get(mark.session)
    following = _follow(state, now, taking) if taking else None
    if following is None and want.takes_over != mark.session:
        return LostPlace(entry.session, at)
    return following


def _follow(state: State, now: float, reservation: str) -> Place | None:
    found = state.reservations.get(reservation)
    if found is None:
        return None
    at = state.at(found.worker, now)
    if found.until <= now or at.state is WorkerState.GONE:
        state.release(reservation, refund=True)
        return None
    if at.state is not WorkerState.ALIVE:
        raise state.late(found.worker, now)
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


def _reserve(state: State, now: float, want: Want, lost: Session | None) -> Place:
    best = _best(state, now, want)
    if best is None:
        offered = any(want.environment in worker.room for worker in state.workers.values())
        raise rules.no_room(want.environment, offered=offered)
    room = state.workers[best].room[want.environment]
    turn = max(state.workers[best].turns[want.environment], state.turns.get(want.environment, 0.0))
    state.turns[want.environment] = turn
    state.workers[best].turns[want.environment] = turn + 1 / room.free
    thread = state.threads.get((want.tenant, want.thread)) if want.takes_over is None else None
    before = state.sessions.get(thread.session) if thread is not None and thread.session else None
    reservation = Reservation(
        best,
        warm=room.warm > 0,
        want=want,
        until=now + state.timings.reservation_s,
        before=before.session.id if before else None,
    )
    name = state.reserve(reservation)
    return Place(
        state.at(best, now),
        known=False,
        reservation=name,
        before=before.session if before else None,
        lost=lost,
    )


def _best(state: State, now: float, want: Want) -> str | None:
    """Of the first whose turn it is, one that has a warm sandbox, or else the first that has room; of a fleet
    so large that those have nothing ready, the one with most room.
    """
    environment = want.environment
    for worker in state.workers.values():
        if now >= worker.until:
            state.unoffer(worker, environment)
    turns = sorted(
        (worker.turns[environment], name)
        for name, worker in state.workers.items()
        if environment in worker.turns
    )
    fitting = {
        name: room
        for _, name in turns
        if name not in want.avoid and (room := state.workers[name].room[environment]).free >= want.units
    }
    first = [name for _, name in turns[: rules.LOOKED_AT] if name in fitting]
    warm = {name for name, room in fitting.items() if room.warm > 0}
    in_turn = next((name for name in first if name in warm), None)
    if in_turn is not None:
        return in_turn
    candidates = warm or ({first[0]} if first else fitting)
    return max(candidates, key=lambda name: (fitting[name].free, name), default=None)
