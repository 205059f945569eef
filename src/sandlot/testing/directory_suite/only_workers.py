"""Creates that only one worker can serve, and sessions that hibernate there."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from sandlot.domain.callers.limits import tenant_holder
from sandlot.domain.errors import Busy, Unavailable
from sandlot.domain.session import OnIdle, Session, SessionState
from sandlot.domain.workspaces.workspace import Workspace
from sandlot.fleet.directory.contract import LostPlace, Place, PlacementRequest, Room, WorkerReport
from sandlot.testing.directory_suite.harness import (
    MARGIN_S,
    TIMINGS,
    Cases,
    Fleet,
    placement_request,
    refused,
)

LATE = TIMINGS.lease_s + MARGIN_S
GONE = LATE + TIMINGS.lost_after_s
ON_W2 = PlacementRequest("acme", "base", only="w2")


class OnlyWorkerCases(Cases):
    async def test_it_goes_there_and_nowhere_else(self, fleet: Fleet) -> None:
        """Whatever room others have; warm room first, and cold room then."""
        await fleet.offer("w1", warm=9)
        await fleet.offer("w2", warm=1, free=2)
        assert [(await fleet.place(only="w2")).worker.id for _ in range(2)] == ["w2", "w2"]
        problem = await refused(fleet.directory.place(ON_W2), "capacity")
        assert "w2" in problem.message
        assert "full" in problem.message
        assert (await fleet.place()).worker.id == "w1"

    async def test_its_warm_sandboxes_are_counted(self, fleet: Fleet) -> None:
        await fleet.offer("w1", warm=1, free=1)
        await fleet.offer("w2", warm=1, free=3)
        place = await fleet.place(only="w2")
        # The warm one is promised, so another worker's comes first.
        assert (await fleet.place()).worker.id == "w1"
        assert place.reservation is not None
        await fleet.directory.give_back(place.reservation)
        # Two of three places are cold, and all are there again.
        assert [(await fleet.place(only="w2")).worker.id for _ in range(3)] == ["w2"] * 3
        await refused(fleet.directory.place(ON_W2), "capacity")

    async def test_it_is_too_large_for_the_room_there(self, fleet: Fleet) -> None:
        await fleet.offer("w1", free=9)
        await fleet.offer("w2", free=3)
        await refused(fleet.directory.place(placement_request(only="w2", units=4)), "capacity")
        assert (await fleet.place(only="w2", units=3)).worker.id == "w2"

    async def test_it_failed_there_before(self, fleet: Fleet) -> None:
        await fleet.offer("w1", warm=9)
        await fleet.offer("w2", warm=9)
        await refused(fleet.directory.place(placement_request(only="w2", avoid=("w2",))), "capacity")
        assert (await fleet.place(only="w2", avoid=("w1",))).worker.id == "w2"

    async def test_among_very_many(self, fleet: Fleet) -> None:
        """The one of which it is not the turn yet."""
        for number in range(40):
            await fleet.offer(f"other-{number:02}", warm=5)
        await fleet.offer("w2", warm=0, free=1)
        assert (await fleet.place(only="w2")).worker.id == "w2"

    async def test_it_is_draining_or_offers_no_such_environment(self, fleet: Fleet) -> None:
        await fleet.offer("w1", warm=9)
        lease = await fleet.offer("w2", warm=9, environment="other")
        problem = await refused(fleet.directory.place(ON_W2), "capacity")
        assert "does not offer environment base" in problem.message
        await fleet.directory.report(lease, WorkerReport(room={"base": Room(9, 9)}, draining=True))
        problem = await refused(fleet.directory.place(ON_W2), "capacity")
        assert "draining" in problem.message

    async def test_it_is_late_and_then_gone(self, fleet: Fleet) -> None:
        await fleet.offer("w1", warm=9)
        await fleet.offer("w2", warm=9)
        await fleet.run_for(LATE, dead=("w2",))
        await refused(fleet.directory.place(ON_W2), "worker_late")
        await fleet.run_for(TIMINGS.lost_after_s, dead=("w2",))
        for name in ("w2", "never-there"):
            with pytest.raises(Unavailable, match=name) as caught:
                await fleet.place(only=name)
            assert caught.value.details["reason"] == "worker_gone"
            assert not caught.value.retryable
        # Once it reports again, it serves again.
        await fleet.offer("w2", warm=9)
        assert (await fleet.place(only="w2")).worker.id == "w2"

    async def test_a_session_that_exists_stays_where_it_is(self, fleet: Fleet) -> None:
        await fleet.offer("w1", warm=9)
        await fleet.settle()
        _, first = await fleet.create(thread="t", idempotency_key="k")
        await fleet.offer("w2", warm=9)
        for request in ({"thread": "t"}, {"idempotency_key": "k"}):
            place = await fleet.place(only="w2", **request)
            assert (place.known, place.worker.id) == (True, first.worker.id)

    async def test_those_of_one_thread_follow_the_first(self, fleet: Fleet) -> None:
        await fleet.offer("w1", warm=9)
        await fleet.offer("w2", warm=9)
        await fleet.settle()
        want = placement_request(only="w2", thread="t")
        clients = (fleet.directory, fleet.harness.other)
        places = await asyncio.gather(*(clients[number % 2].place(want) for number in range(8)))
        assert {place.worker.id for place in places} == {"w2"}
        assert len({place.reservation for place in places if isinstance(place, Place)}) == 1

    async def test_limits_come_first(self, fleet: Fleet) -> None:
        await fleet.offer("w2", warm=9)
        await fleet.settle()
        await fleet.create(only="w2", max_sessions=1)
        with pytest.raises(Busy):
            await fleet.place(only="w2", max_sessions=1)


class HibernationCases(Cases):
    async def hibernated(self, fleet: Fleet, **options: object) -> Session:
        """A session that was created, and then hibernated."""
        session, place = await fleet.create(**options)
        after = replace(
            session,
            state=SessionState.HIBERNATED,
            sandbox_id=None,
            on_idle=OnIdle.HIBERNATE,
            workspace=Workspace("wsp_" + "a" * 32, 2**30),
        )
        # The reservation is used up, as it is for every later record of a session.
        assert await fleet.record(replace(place, reservation=None), after) == frozenset()
        return after

    async def test_it_is_found_on_its_worker(self, fleet: Fleet) -> None:
        await fleet.offer("w1", warm=5)
        await fleet.settle()
        session = await self.hibernated(fleet, thread="t")
        found = await fleet.directory.find(session.id)
        assert found is not None
        assert (found.session, found.worker.id) == (session, "w1")
        assert [each.session for each in (await fleet.directory.page("acme")).found] == [session]
        place = await fleet.place(thread="t")
        assert (place.known, place.worker.id) == (True, "w1")
        assert session.id in (await fleet.directory.held("w1")).ids

    async def test_it_counts_like_a_lost_session(self, fleet: Fleet) -> None:
        """Towards the limits of its tenant, because its next use needs no place from the directory."""
        await fleet.offer("w1", warm=5)
        await fleet.settle()
        await self.hibernated(fleet, max_sessions=1)
        assert (await fleet.directory.use(tenant_holder("acme"))).sessions == 1
        with pytest.raises(Busy):
            await fleet.place(max_sessions=1)
        assert (await fleet.directory.status()).sessions == 1

    async def test_it_takes_no_room(self, fleet: Fleet) -> None:
        """The room of a worker is what the worker reports, and nothing is promised for it."""
        await fleet.offer("w1", warm=1, free=1)
        await fleet.settle()
        await self.hibernated(fleet)
        await fleet.offer("w1", warm=1, free=1)
        assert (await fleet.place()).worker.id == "w1"

    async def test_it_is_lost_with_its_worker(self, fleet: Fleet) -> None:
        await fleet.offer("w1", warm=5)
        await fleet.settle()
        session = await self.hibernated(fleet, thread="t")
        await fleet.offer("w2", warm=5)
        await fleet.run_for(GONE, dead=("w1",))
        lost = await fleet.directory.place(placement_request(thread="t"))
        assert isinstance(lost, LostPlace)
        assert lost.session == session
        place = await fleet.place(thread="t", takes_over=session.id)
        assert (place.worker.id, place.lost) == ("w2", session)
