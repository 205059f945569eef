"""Workers that do not come back: the fleet waits, then reports their sessions as lost.

No session is silently replaced.
"""

from __future__ import annotations

import asyncio

import pytest

from sandlot.domain.errors import Conflict, NotFound
from sandlot.domain.ids import new_session_id
from sandlot.domain.session import Session
from sandlot.domain.session_states import lose, loss_report, recreate
from sandlot.fleet.directory.contract import LostPlace, Place, PlacementRequest, SessionEntry, WorkerState
from sandlot.testing.directory_suite.harness import (
    MARGIN_S,
    TIMINGS,
    Cases,
    Fleet,
    a_session,
    ended,
    placement_request,
    refused,
)

NAMES = ["thread", "idempotency_key"]
LATE = TIMINGS.lease_s + MARGIN_S
GONE = TIMINGS.lease_s + TIMINGS.lost_after_s + MARGIN_S


async def session_of_gone_worker(fleet: Fleet, **want: object) -> Session:
    """Creates a session whose worker w1 is then gone, while w2 stays alive."""
    await fleet.offer("w1", warm=5)
    await fleet.settle()
    session, _ = await fleet.create(**want)
    await fleet.offer("w2", warm=5)
    await fleet.run_for(GONE, dead=("w1",))
    return session


def recreated(session: Session) -> Session:
    lost = lose(session, loss_report(session, "its worker is gone", session.created_at + 100))
    return recreate(lost, "sbx_" + "1" * 32, session.created_at + 101)


class LossCases(Cases):
    @pytest.mark.parametrize("name", NAMES)
    async def test_a_late_worker_is_awaited(self, fleet: Fleet, name: str) -> None:
        lease = await fleet.offer("w1", warm=5)
        await fleet.settle()
        session, _ = await fleet.create(**{name: "t"})
        await fleet.offer("w2", warm=5)
        await fleet.run_for(LATE, dead=("w1",))
        await refused(fleet.directory.place(placement_request(**{name: "t"})), "worker_late")
        found = await fleet.directory.find(session.id)
        assert found is not None
        assert found.worker.state is WorkerState.LATE
        await fleet.directory.report(lease, fleet.reports["w1"])
        assert (await fleet.place(**{name: "t"})).worker.id == "w1"

    async def test_since_when_a_worker_is_silent(self, fleet: Fleet) -> None:
        """O10: the best known time of the loss is when the worker fell silent."""
        session = await session_of_gone_worker(fleet, thread="t")
        found = await fleet.directory.find(session.id)
        (listed,) = (await fleet.directory.page("acme")).found
        placed = await fleet.directory.place(placement_request(thread="t"))
        assert found is not None
        for at in (found.worker, listed.worker, placed.worker):
            assert at.expired_for_s == pytest.approx(TIMINGS.lost_after_s + MARGIN_S, abs=MARGIN_S)
        living = await fleet.directory.place(placement_request())
        assert living.worker.expired_for_s == 0.0

    @pytest.mark.parametrize("name", NAMES)
    async def test_lost_with_its_worker(self, fleet: Fleet, name: str) -> None:
        session = await session_of_gone_worker(fleet, **{name: "t"})
        place = await fleet.directory.place(placement_request(**{name: "t"}))
        assert isinstance(place, LostPlace)
        assert place.session == session
        assert (place.worker.id, place.worker.state) == ("w1", WorkerState.GONE)
        found = await fleet.directory.find(session.id)
        assert found is not None
        assert found.worker.state is WorkerState.GONE
        assert await fleet.count() == 1

    @pytest.mark.parametrize("thread", ["t", None])
    async def test_taken_over_once(self, fleet: Fleet, thread: str | None) -> None:
        session = await session_of_gone_worker(fleet, thread=thread)
        await fleet.offer("w3", warm=5)
        # The quota counts the lost session already.
        want = placement_request(thread=thread, max_sessions=1, takes_over=session.id)
        clients = (fleet.directory, fleet.harness.other)
        places = await asyncio.gather(*(clients[number % 2].place(want) for number in range(20)))
        first = next(place for place in places if isinstance(place, Place) and not place.known)
        assert first.lost == session
        assert {place.worker.id for place in places} == {first.worker.id}
        assert first.worker.id in ("w2", "w3")
        if thread is not None:
            # Callers that ask for the thread go to the same worker.
            assert (await fleet.place(thread=thread)).worker == first.worker
        with pytest.raises(Conflict) as caught:
            await fleet.directory.bury(ended(session))
        assert caught.value.retryable
        assert caught.value.retry_after_s
        after = recreated(session)
        assert await fleet.record(first, after) == frozenset()
        found = await fleet.directory.find(session.id)
        assert found is not None
        assert (found.session, found.worker.id) == (after, first.worker.id)
        assert await fleet.count() == 1
        assert (await fleet.directory.status()).reservations == 0

    async def test_the_old_worker_comes_back_too_late(self, fleet: Fleet) -> None:
        session = await session_of_gone_worker(fleet, thread="t")
        place = await fleet.place(thread="t", takes_over=session.id)
        await fleet.record(place, recreated(session))
        own = a_session()
        old = fleet.leases["w1"]
        await fleet.directory.report(old, fleet.reports["w1"])
        assert await fleet.directory.record(old, [SessionEntry(session), SessionEntry(own)]) == {session.id}
        await fleet.directory.forget(old, [session.id])
        assert (await fleet.place(thread="t")).worker.id == "w2"

    async def test_the_old_worker_comes_back_in_time(self, fleet: Fleet) -> None:
        session = await session_of_gone_worker(fleet, thread="t")
        await fleet.directory.report(fleet.leases["w1"], fleet.reports["w1"])
        place = await fleet.place(thread="t", takes_over=session.id)
        assert (place.known, place.worker.id, place.reservation) == (True, "w1", None)

    async def test_a_take_over_that_failed(self, fleet: Fleet) -> None:
        session = await session_of_gone_worker(fleet, thread="t")
        place = await fleet.place(thread="t", takes_over=session.id)
        assert place.reservation is not None
        assert await fleet.directory.give_back(place.reservation)
        assert isinstance(await fleet.directory.place(PlacementRequest("acme", "base", "t")), LostPlace)
        await fleet.place(thread="t", takes_over=session.id)
        await fleet.run_for(TIMINGS.reservation_s + MARGIN_S, dead=("w1",))
        assert isinstance(await fleet.directory.place(PlacementRequest("acme", "base", "t")), LostPlace)
        assert await fleet.directory.find(session.id) is not None

    async def test_who_follows_a_take_over_is_told_of_it(self, fleet: Fleet) -> None:
        """The caller that began the take-over may never have reached the worker."""
        session = await session_of_gone_worker(fleet, thread="t")
        await fleet.place(thread="t", takes_over=session.id)
        for want in (placement_request(thread="t"), placement_request(takes_over=session.id)):
            following = await fleet.directory.place(want)
            assert isinstance(following, Place)
            assert (following.known, following.lost) == (True, session)

    async def test_a_take_over_that_is_overtaken_by_the_worker_itself(self, fleet: Fleet) -> None:
        session = await session_of_gone_worker(fleet, thread="t")
        place = await fleet.place(thread="t", takes_over=session.id)
        old = fleet.leases["w1"]
        await fleet.directory.report(old, fleet.reports["w1"])
        assert await fleet.directory.record(old, [SessionEntry(session)]) == frozenset()
        assert await fleet.record(place, recreated(session)) == {session.id}
        found = await fleet.directory.find(session.id)
        assert found is not None
        assert (found.session, found.worker.id) == (session, "w1")
        assert (await fleet.directory.status()).reservations == 0

    async def test_nothing_to_take_over(self, fleet: Fleet) -> None:
        await fleet.offer("w1")
        await fleet.settle()
        for session_id in (new_session_id(), "what?"):
            with pytest.raises(NotFound):
                await fleet.place(takes_over=session_id)

    async def test_another_tenant_takes_over_nothing(self, fleet: Fleet) -> None:
        session = await session_of_gone_worker(fleet, thread="t")
        with pytest.raises(NotFound):
            await fleet.place(tenant="other", takes_over=session.id)

    async def test_buried(self, fleet: Fleet) -> None:
        session = await session_of_gone_worker(fleet, thread="t", max_sessions=1)
        assert await fleet.directory.bury(ended(session))
        assert not await fleet.directory.bury(ended(session))
        found = await fleet.directory.find(session.id)
        assert found is not None
        assert (found.session, found.worker.state) == (ended(session), WorkerState.GONE)
        assert await fleet.count() == 0
        assert (await fleet.directory.page("acme")).found == ()
        with pytest.raises(NotFound):
            await fleet.place(thread="t", takes_over=session.id)
        place = await fleet.place(thread="t", max_sessions=1)
        assert (place.known, place.previous) == (False, ended(session))

    async def test_what_is_buried_does_not_come_back_with_its_worker(self, fleet: Fleet) -> None:
        session = await session_of_gone_worker(fleet, thread="t")
        await fleet.directory.bury(ended(session))
        old = fleet.leases["w1"]
        await fleet.directory.report(old, fleet.reports["w1"])
        assert await fleet.directory.record(old, [SessionEntry(session)]) == {session.id}
        found = await fleet.directory.find(session.id)
        assert found is not None
        assert found.session == ended(session)

    async def test_only_the_lost_are_buried(self, fleet: Fleet) -> None:
        await fleet.offer("w1")
        await fleet.settle()
        session, _ = await fleet.create()
        for dead in ((), ("w1",)):
            await fleet.run_for(LATE, dead=dead)
            with pytest.raises(Conflict):
                await fleet.directory.bury(ended(session))
        assert await fleet.directory.find(session.id) is not None

    async def test_swept_in_the_end(self, fleet: Fleet) -> None:
        """The sweep removes a few sessions at a time, then their worker, but not its epoch."""
        await fleet.offer("w1", warm=5)
        await fleet.settle()
        sessions = [(await fleet.create(thread=f"t{number}"))[0] for number in range(5)]
        await fleet.offer("w2", warm=5)
        kept, _ = await fleet.create(thread="kept")
        await fleet.run_for(GONE, dead=("w1",))
        assert kept.id in (await fleet.directory.held("w2")).ids
        assert await fleet.directory.sweep() == 0
        await fleet.run_for(TIMINGS.remember_lost_s, dead=("w1",))
        assert await fleet.directory.sweep(limit=3) == 3
        assert await fleet.count() == 3
        assert await fleet.directory.sweep() == 2
        assert await fleet.directory.sweep() == 0
        assert [status.ref.id for status in await fleet.directory.workers()] == ["w2"]
        assert await fleet.count() == 1
        for session in sessions:
            assert await fleet.directory.find(session.id) is None
        assert (await fleet.join("w1")).epoch == 2
