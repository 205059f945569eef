"""Threads and idempotency keys: one worker for each, however many callers ask."""

from __future__ import annotations

import asyncio

import pytest

from sandlot.fleet.directory.contract import Place, PlacementRequest, SessionEntry
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


class ThreadCases(Cases):
    @pytest.mark.parametrize("name", NAMES)
    async def test_fifty_at_once_go_to_one_worker(self, fleet: Fleet, name: str) -> None:
        """The callers use two coordinators, and together they take only one place."""
        for worker in ("w1", "w2", "w3"):
            await fleet.offer(worker, warm=1, free=2)
        await fleet.settle()
        for number in range(3):
            want = placement_request(**{name: f"t{number}"})
            clients = (fleet.directory, fleet.harness.other)
            places = await asyncio.gather(*(clients[i % 2].place(want) for i in range(50)))
            assert all(isinstance(place, Place) for place in places)
            assert len({place.worker.id for place in places}) == 1
            assert sum(isinstance(place, Place) and not place.known for place in places) == 1
            assert (await fleet.directory.status()).reservations == number + 1
        # Three threads took the three warm sandboxes, so three cold places are left.
        await fleet.offer("w4", free=2)
        left = [(await fleet.place()).worker.id for _ in range(5)]
        assert sorted(left) == ["w1", "w2", "w3", "w4", "w4"]
        await refused(fleet.directory.place(PlacementRequest("acme", "base")), "capacity")

    @pytest.mark.parametrize("name", NAMES)
    async def test_known_once_recorded(self, fleet: Fleet, name: str) -> None:
        await fleet.offer("w1", warm=5)
        await fleet.offer("w2", warm=5)
        await fleet.settle()
        _, place = await fleet.create(**{name: "t"})
        again = await fleet.place(**{name: "t"})
        assert again.known
        assert again.worker == place.worker
        assert again.reservation is None
        assert not (await fleet.place(**{name: "t", "tenant": "other"})).known
        assert not (await fleet.place(**{name: "u"})).known

    async def test_threads_and_keys_are_apart(self, fleet: Fleet) -> None:
        await fleet.offer("w1", warm=5)
        await fleet.settle()
        await fleet.create(thread="t")
        assert not (await fleet.place(idempotency_key="t")).known

    async def test_known_by_either(self, fleet: Fleet) -> None:
        await fleet.offer("w1", warm=5)
        await fleet.settle()
        await fleet.create(thread="t", idempotency_key="k")
        assert (await fleet.place(thread="t")).known
        assert (await fleet.place(thread="another", idempotency_key="k")).known

    async def test_on_a_draining_worker(self, fleet: Fleet) -> None:
        lease = await fleet.offer("w1", warm=5)
        await fleet.settle()
        await fleet.create(thread="t")
        await fleet.directory.report(lease, type(fleet.reports["w1"])(draining=True))
        assert (await fleet.place(thread="t")).worker.id == "w1"

    async def test_one_of_many_gives_back(self, fleet: Fleet) -> None:
        """The other callers still wait for that worker, which may yet create the session."""
        await fleet.offer("w1", warm=1, free=1)
        await fleet.offer("w2", warm=1, free=1)
        await fleet.settle()
        first, second = await fleet.place(thread="t"), await fleet.place(thread="t")
        assert first.reservation is not None
        assert first.reservation == second.reservation
        assert not await fleet.directory.give_back(first.reservation)
        third = await fleet.place(thread="t")
        assert (third.known, third.worker) == (True, first.worker)
        assert not await fleet.directory.give_back(first.reservation)
        assert await fleet.directory.give_back(first.reservation)
        assert not (await fleet.place(thread="t")).known

    @pytest.mark.parametrize("name", NAMES)
    async def test_a_reservation_that_ended(self, fleet: Fleet, name: str) -> None:
        await fleet.offer("w1", warm=1)
        await fleet.settle()
        first = await fleet.place(**{name: "t"})
        await fleet.run_for(TIMINGS.reservation_s + MARGIN_S)
        second = await fleet.place(**{name: "t"})
        assert not second.known
        assert second.reservation != first.reservation

    async def test_many_reservations_that_ended(self, fleet: Fleet) -> None:
        """No expired reservation leads to a worker, however many still await cleanup."""
        await fleet.offer("w1", free=100)
        await fleet.settle()
        threads = [f"t{number}" for number in range(12)]
        for thread in threads:
            await fleet.place(thread=thread)
        await fleet.harness.pass_time(TIMINGS.reservation_s + MARGIN_S)
        await fleet.join("w1")
        await fleet.offer("w1", free=100)
        for thread in reversed(threads):
            assert not (await fleet.place(thread=thread)).known

    async def test_reserved_on_a_worker_that_is_late(self, fleet: Fleet) -> None:
        """The worker may have created it, so no other is asked until the reservation ends."""
        await fleet.offer("w1", warm=9, free=100)
        await fleet.offer("w2", warm=1, free=50)
        await fleet.settle()
        assert (await fleet.place(thread="t")).worker.id == "w1"
        await fleet.run_for(TIMINGS.lease_s + MARGIN_S, dead=("w1",))
        await refused(fleet.directory.place(PlacementRequest("acme", "base", "t")), "worker_late")
        await fleet.run_for(TIMINGS.reservation_s, dead=("w1",))
        assert (await fleet.place(thread="t")).worker.id == "w2"

    async def test_a_record_that_comes_late_takes_the_thread_from_nobody(self, fleet: Fleet) -> None:
        lease = await fleet.offer("w1")
        await fleet.settle()
        abandoned, present = a_session(thread="t", age=10), a_session(thread="t")
        assert await fleet.directory.record(lease, [SessionEntry(present)]) == frozenset()
        assert await fleet.directory.record(lease, [SessionEntry(abandoned)]) == {abandoned.id}
        page = await fleet.directory.page("acme", thread="t")
        assert [found.session for found in page.found] == [present]

    async def test_recorded_without_its_reservation(self, fleet: Fleet) -> None:
        """The directory finds the reservation by the session's thread."""
        await fleet.offer("w1", warm=2, free=2)
        await fleet.settle()
        place = await fleet.place(thread="t", max_sessions=1)
        await fleet.record(Place(place.worker, known=True), a_session(thread="t"))
        assert (await fleet.directory.status()).reservations == 0
        assert await fleet.count() == 1

    async def test_an_ended_thread_begins_anew(self, fleet: Fleet) -> None:
        await fleet.offer("w1", warm=5)
        await fleet.settle()
        session, place = await fleet.create(thread="t")
        await fleet.record(Place(place.worker, known=True), ended(session))
        again = await fleet.place(thread="t")
        assert not again.known
        assert again.previous == ended(session)
        # After the reservation is given back, the ended session is still the thread's last one.
        assert again.reservation is not None
        await fleet.directory.give_back(again.reservation)
        third = await fleet.place(thread="t")
        assert (third.known, third.previous) == (False, ended(session))
        await fleet.record(third, a_session(thread="t"))
        assert (await fleet.place(thread="t")).known

    async def test_given_up_with_its_worker_the_ended_one_is_still_the_last(self, fleet: Fleet) -> None:
        await fleet.offer("w1", warm=5, free=5)
        await fleet.settle()
        session, place = await fleet.create(thread="t")
        await fleet.record(Place(place.worker, known=True), ended(session))
        other = await fleet.offer("w2", warm=5, free=50)
        assert (await fleet.place(thread="t")).worker.id == "w2"
        await fleet.directory.leave(other)
        for _ in range(2):
            again = await fleet.place(thread="t")
            assert (again.known, again.previous, again.worker.id) == (False, ended(session), "w1")
            assert again.reservation is not None
            await fleet.directory.give_back(again.reservation)

    async def test_made_and_ended_at_once(self, fleet: Fleet) -> None:
        """The session ended before its worker recorded it."""
        await fleet.offer("w1", warm=5)
        await fleet.settle()
        place, session = await fleet.place(thread="t", max_sessions=1), ended(a_session(thread="t"))
        assert await fleet.record(place, session) == frozenset()
        again = await fleet.place(thread="t", max_sessions=1)
        assert (again.known, again.previous) == (False, session)

    async def test_a_known_key_of_an_ended_thread(self, fleet: Fleet) -> None:
        await fleet.offer("w1", warm=5)
        await fleet.settle()
        session, place = await fleet.create(thread="t", idempotency_key="k")
        await fleet.record(Place(place.worker, known=True), ended(session), "k")
        again = await fleet.place(thread="t", idempotency_key="k")
        assert again == Place(place.worker, known=True)

    async def test_a_key_keeps_meaning_its_session(self, fleet: Fleet) -> None:
        """Even after the session has ended, because its worker knows how to answer."""
        await fleet.offer("w1", warm=5)
        await fleet.offer("w2", warm=6)
        await fleet.settle()
        session, place = await fleet.create(idempotency_key="k")
        await fleet.record(Place(place.worker, known=True), ended(session), "k")
        assert await fleet.place(idempotency_key="k") == Place(place.worker, known=True)
        await fleet.run_for(TIMINGS.remember_ended_s + MARGIN_S)
        assert not (await fleet.place(idempotency_key="k")).known
