"""Chooses the worker of a create in the memory directory. The twin of ``scripts/place.lua``."""

from __future__ import annotations

from sandlot.domain.callers.limits import check_room, too_many_creates, use_of
from sandlot.domain.callers.rates import take
from sandlot.domain.session import Session
from sandlot.domain.session_states import no_session_error
from sandlot.fleet.directory import rules
from sandlot.fleet.directory.contract import LostPlace, Place, PlacementRequest, WorkerState
from sandlot.fleet.directory.memory_state import Mark, Reservation, State


def place(state: State, now: float, request: PlacementRequest) -> Place | LostPlace:
    state.expire(now)
    lost: Session | None = None
    if request.takes_over is not None:
        known = _existing_place(state, now, request, Mark(session=request.takes_over), include_ended=True)
        entry = state.sessions.get(request.takes_over)
        if known is None and (entry is None or entry.ended or entry.session.tenant != request.tenant):
            state.check_settled(now)
            raise no_session_error(request.takes_over)
        lost = entry.session if entry is not None else None
    else:
        known = _existing_place(
            state, now, request, state.threads.get((request.tenant, request.thread)), include_ended=False
        )
        if known is None:
            key = state.keys.get((request.tenant, request.idempotency_key))
            known = _existing_place(state, now, request, key, include_ended=True)
    if known is not None:
        return known
    if request.thread is not None or request.idempotency_key is not None or request.allowances:
        state.check_settled(now)
    due = {}
    if request.takes_over is None:
        for allowance in request.allowances:
            check_room(allowance, state.use(allowance.holder), use_of(request.limits))
        due = _due_after_create(state, now, request)
    place = _reserve(state, now, request, lost)
    state.due.update(due)
    return place


def _due_after_create(state: State, now: float, request: PlacementRequest) -> dict[str, float]:
    """The due times of the rates that this create counts towards, which it passes."""
    due = {}
    for allowance in request.allowances:
        rate = allowance.creates
        # A create that tries its next worker has passed its rate before.
        if rate is not None and not request.avoid:
            due[rate.name], taken = take(rate, state.due.get(rate.name, now), now)
            if taken.wait_s:
                raise too_many_creates(allowance, taken.wait_s)
    return due


def _existing_place(
    state: State, now: float, request: PlacementRequest, mark: Mark | None, *, include_ended: bool
) -> Place | LostPlace | None:
    if mark is None:
        return None
    if mark.reservation is not None:
        return _join_reservation(state, now, mark.reservation, request)
    assert mark.session is not None
    entry = state.sessions.get(mark.session)
    if entry is None or entry.session.tenant != request.tenant or (entry.ended and not include_ended):
        return None
    at = state.at(entry.worker, now)
    if at.state is WorkerState.ALIVE:
        return Place(at, known=True)
    if at.state is WorkerState.LATE:
        raise state.late(entry.worker, now)
    if entry.ended:
        return None
    takeover = state.takeovers.get(mark.session)
    joined = _join_reservation(state, now, takeover, request) if takeover else None
    if joined is None and request.takes_over != mark.session:
        return LostPlace(entry.session, at)
    return joined


def _join_reservation(state: State, now: float, reservation: str, request: PlacementRequest) -> Place | None:
    found = state.reservations.get(reservation)
    if found is None:
        return None
    at = state.at(found.worker, now)
    if found.until <= now or at.state is WorkerState.GONE:
        state.release(reservation, refund=True)
        return None
    if at.state is not WorkerState.ALIVE:
        raise state.late(found.worker, now)
    # The worker may serve this request first, and its limits were not checked.
    first = found.request
    if first.takes_over is None and (first.created_by, use_of(first.limits)) != (
        request.created_by,
        use_of(request.limits),
    ):
        raise rules.opening()
    found.holders += 1
    previous = state.sessions.get(found.previous or "")
    lost = state.sessions.get(found.request.takes_over or "")
    return Place(
        at,
        known=True,
        reservation=reservation,
        previous=previous.session if previous else None,
        lost=lost.session if lost else None,
    )


def _reserve(state: State, now: float, request: PlacementRequest, lost: Session | None) -> Place:
    chosen = _choose_worker(state, now, request)
    if chosen is None and request.only is not None:
        at = state.at(request.only, now)
        offered = at.state is WorkerState.ALIVE and request.environment in state.workers[request.only].room
        raise rules.only_one(request.only, at.state, request.environment, offered=offered)
    if chosen is None:
        offered = any(request.environment in worker.room for worker in state.workers.values())
        raise rules.no_room(request.environment, offered=offered)
    room = state.workers[chosen].room[request.environment]
    turn = max(state.workers[chosen].turns[request.environment], state.turns.get(request.environment, 0.0))
    state.turns[request.environment] = turn
    state.workers[chosen].turns[request.environment] = turn + 1 / room.free
    thread = state.threads.get((request.tenant, request.thread)) if request.takes_over is None else None
    previous = state.sessions.get(thread.session) if thread is not None and thread.session else None
    reservation = Reservation(
        chosen,
        warm=room.warm > 0,
        request=request,
        until=now + state.timings.reservation_s,
        previous=previous.session.id if previous else None,
    )
    name = state.reserve(reservation)
    return Place(
        state.at(chosen, now),
        known=False,
        reservation=name,
        previous=previous.session if previous else None,
        lost=lost,
    )


def _choose_worker(state: State, now: float, request: PlacementRequest) -> str | None:
    """Choose among the first ``rules.MAX_CANDIDATES`` workers in turn.

    Prefer the first candidate with a warm sandbox. In a large fleet no candidate may have one: then
    take the worker with the most room among all that have a warm sandbox. If no worker has one,
    take the first candidate with room, or else the worker with the most room. ``only`` leaves one candidate.
    """
    environment = request.environment
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
        if name not in request.avoid
        and request.only in (None, name)
        and (room := state.workers[name].room[environment]).free >= request.units
    }
    candidates = [name for _, name in turns[: rules.MAX_CANDIDATES] if name in fitting]
    warm = {name for name, room in fitting.items() if room.warm > 0}
    in_turn = next((name for name in candidates if name in warm), None)
    if in_turn is not None:
        return in_turn
    others = warm or ({candidates[0]} if candidates else fitting)
    return max(others, key=lambda name: (fitting[name].free, name), default=None)
