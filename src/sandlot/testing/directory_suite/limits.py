"""Limits of tenants and keys: never one session too many, and none too few."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from sandlot.domain.callers.limits import Allowance, CallerLimits, Use, key_holder, tenant_holder
from sandlot.domain.capacity.limits import MIB, Limits
from sandlot.domain.errors import Busy, Unavailable
from sandlot.fleet.directory.contract import Place, SessionEntry
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

LARGE = Limits(cpus=1.5, memory_bytes=1024 * MIB)


class LimitCases(Cases):
    async def test_never_over_it(self, fleet: Fleet) -> None:
        """Sessions that are being created count too."""
        await fleet.offer("w1")
        await fleet.settle()
        await fleet.create(max_sessions=3)
        await fleet.place(max_sessions=3)
        await fleet.place(max_sessions=3)
        with pytest.raises(Busy) as caught:
            await fleet.place(max_sessions=3)
        assert caught.value.details == {"reason": "quota", "limit": "sessions", "at_most": 3}
        assert (await fleet.place(tenant="other", max_sessions=3)).worker.id == "w1"
        assert (await fleet.place()).worker.id == "w1"

    async def test_at_once(self, fleet: Fleet) -> None:
        await fleet.offer("w1")
        await fleet.settle()
        clients = (fleet.directory, fleet.harness.other)
        calls = [clients[number % 2].place(placement_request(max_sessions=7)) for number in range(40)]
        answers = await asyncio.gather(*calls, return_exceptions=True)
        assert sum(isinstance(answer, Place) for answer in answers) == 7
        assert sum(isinstance(answer, Busy) for answer in answers) == 33

    async def test_a_known_thread_needs_none(self, fleet: Fleet) -> None:
        await fleet.offer("w1")
        await fleet.settle()
        await fleet.create(thread="t", max_sessions=1)
        assert (await fleet.place(thread="t", max_sessions=1)).known

    async def test_comes_back(self, fleet: Fleet) -> None:
        lease = await fleet.offer("w1")
        await fleet.settle()
        session, _ = await fleet.create(max_sessions=2)
        place = await fleet.place(max_sessions=2)
        assert place.reservation is not None
        with pytest.raises(Busy):
            await fleet.place(max_sessions=2)
        await fleet.directory.give_back(place.reservation)
        other, _ = await fleet.create(max_sessions=2)
        await fleet.directory.forget(lease, [session.id])
        third, _ = await fleet.create(max_sessions=2)
        with pytest.raises(Busy):
            await fleet.place(max_sessions=2)
        await fleet.record(Place(place.worker, known=True), ended(third))
        await fleet.create(max_sessions=2)
        assert await fleet.count() == 2
        assert await fleet.directory.find(other.id) is not None

    @pytest.mark.parametrize(
        ("at_most", "limit"),
        [
            (CallerLimits(cpus=3.2), "cpus"),
            (CallerLimits(memory_mb=2500), "memory_mb"),
            (CallerLimits(sessions=2, cpus=100, memory_mb=100_000), "sessions"),
        ],
    )
    async def test_of_each_kind(self, fleet: Fleet, at_most: CallerLimits, limit: str) -> None:
        await fleet.offer("w1")
        await fleet.settle()
        await fleet.create(at_most=at_most, limits=LARGE)
        await fleet.place(at_most=at_most, limits=LARGE)
        with pytest.raises(Busy) as caught:
            await fleet.place(at_most=at_most, limits=LARGE)
        assert caught.value.details["limit"] == limit
        assert caught.value.details["at_most"] == getattr(at_most, limit)

    async def test_what_fits_exactly_fits(self, fleet: Fleet) -> None:
        """Tenths have no exact binary form: ten of them must still make one."""
        await fleet.offer("w1", free=20)
        await fleet.settle()
        at_most, small = CallerLimits(cpus=1.0), Limits(cpus=0.1)
        for _ in range(10):
            await fleet.create(at_most=at_most, limits=small)
        with pytest.raises(Busy):
            await fleet.create(at_most=at_most, limits=small)

    async def test_of_a_key(self, fleet: Fleet) -> None:
        await fleet.offer("w1")
        await fleet.settle()
        own = {
            name: {"created_by": name, "allowances": (Allowance(key_holder(name), CallerLimits(sessions=1)),)}
            for name in ("k1", "k2")
        }
        session, place = await fleet.create(**own["k1"])
        with pytest.raises(Busy, match="API key k1 has reached its limit of 1 session"):
            await fleet.place(**own["k1"])
        await fleet.create(**own["k2"])
        assert await fleet.directory.use(key_holder("k1")) == Use(1, 500, 512)
        assert await fleet.directory.use(tenant_holder("acme")) == Use(2, 1000, 1024)
        await fleet.record(Place(place.worker, known=True), ended(session))
        await fleet.create(**own["k1"])

    async def test_of_a_tenant_and_a_key_together(self, fleet: Fleet) -> None:
        """A refusal by one of them counts for neither."""
        await fleet.offer("w1")
        await fleet.settle()
        allowances = (
            Allowance(tenant_holder("acme"), CallerLimits(sessions=5)),
            Allowance(key_holder("k"), CallerLimits(sessions=1)),
        )
        await fleet.create(created_by="k", allowances=allowances)
        for _ in range(5):
            with pytest.raises(Busy):
                await fleet.place(created_by="k", allowances=allowances)
        assert (await fleet.directory.use(tenant_holder("acme"))).sessions == 1

    async def test_use_follows_a_session_through_its_life(self, fleet: Fleet) -> None:
        lease = await fleet.offer("w1")
        await fleet.settle()
        acme, key = tenant_holder("acme"), key_holder("k")
        nothing, one = Use(), Use(1, 1500, 1024)
        assert await fleet.directory.use(acme) == nothing
        place = await fleet.place(created_by="k", limits=LARGE)
        assert await fleet.directory.use(acme) == one
        session = a_session(created_by="k", limits=LARGE)
        for _ in range(2):  # a worker records a session again and again
            await fleet.record(place, session)
            assert await fleet.directory.use(acme) == one
            assert await fleet.directory.use(key) == one
        await fleet.record(Place(place.worker, known=True), ended(session))
        assert await fleet.directory.use(acme) == nothing
        assert await fleet.directory.use(key) == nothing
        await fleet.record(Place(place.worker, known=True), ended(session))
        given_back = await fleet.place(created_by="k", limits=LARGE)
        assert given_back.reservation is not None
        await fleet.directory.give_back(given_back.reservation)
        assert await fleet.directory.use(key) == nothing
        expiring = await fleet.place(created_by="k")
        assert expiring.reservation is not None
        forgotten, _ = await fleet.create(created_by="k")
        await fleet.directory.forget(lease, [forgotten.id])
        assert (await fleet.directory.use(key)).sessions == 1
        await fleet.run_for(TIMINGS.reservation_s + MARGIN_S)
        assert await fleet.directory.use(key) == nothing

    async def test_a_session_counts_as_its_last_record_says(self, fleet: Fleet) -> None:
        await fleet.offer("w1")
        await fleet.settle()
        session, place = await fleet.create(created_by="k")
        larger = a_session(id=session.id, created_by="k", limits=LARGE)
        await fleet.record(Place(place.worker, known=True), larger)
        assert await fleet.directory.use(tenant_holder("acme")) == Use(1, 1500, 1024)

    async def test_creates_per_second(self, fleet: Fleet) -> None:
        await fleet.offer("w1", free=20)
        await fleet.settle()
        at_most = CallerLimits(creates_per_s=0.1)
        calls = [fleet.directory.place(placement_request(at_most=at_most)) for _ in range(10)]
        answers = await asyncio.gather(*calls, return_exceptions=True)
        assert sum(isinstance(answer, Place) for answer in answers) == 1
        refusals = [answer for answer in answers if isinstance(answer, Busy)]
        assert len(refusals) == 9
        for refusal in refusals:
            assert refusal.details["limit"] == "creates_per_s"
            assert refusal.retry_after_s is not None
            assert 0 < refusal.retry_after_s <= 10
        # Another tenant has its own rate.
        await fleet.place(tenant="other", at_most=at_most)

    async def test_a_create_that_tries_its_next_worker_counts_once(self, fleet: Fleet) -> None:
        for name in ("w1", "w2"):
            await fleet.offer(name)
        await fleet.settle()
        at_most = CallerLimits(creates_per_s=0.01)
        first = await fleet.place(at_most=at_most)
        again = await fleet.place(at_most=at_most, avoid=(first.worker.id,))
        assert again.worker.id != first.worker.id
        with pytest.raises(Busy):
            await fleet.place(at_most=at_most)

    async def test_a_create_that_finds_no_room_does_not_count(self, fleet: Fleet) -> None:
        await fleet.offer("w1", warm=0, free=0)
        await fleet.settle()
        at_most = CallerLimits(creates_per_s=0.01)
        for _ in range(3):
            with pytest.raises(Unavailable):
                await fleet.place(at_most=at_most)
        await fleet.offer("w1")
        await fleet.place(at_most=at_most)

    async def test_a_request_of_another_size_waits_for_the_first(self, fleet: Fleet) -> None:
        """The worker may serve either of them, so the second may not pass on the first one's check."""
        await fleet.offer("w1")
        await fleet.settle()
        at_most = CallerLimits(cpus=0.5)
        place = await fleet.place(thread="t", at_most=at_most, created_by="k1")
        assert (
            await fleet.place(thread="t", at_most=at_most, created_by="k1")
        ).reservation == place.reservation
        for other in ({"created_by": "k1", "limits": LARGE}, {"created_by": "k2"}):
            await refused(
                fleet.directory.place(placement_request(thread="t", at_most=at_most, **other)), "opening"
            )
        await fleet.record(place, a_session(thread="t", created_by="k1"))
        # Now it is the worker that compares them with the session.
        assert (await fleet.place(thread="t", at_most=at_most, created_by="k2", limits=LARGE)).known

    async def test_lost_taken_over_and_buried(self, fleet: Fleet) -> None:
        for name in ("w1", "w2"):
            await fleet.offer(name)
        await fleet.settle()
        acme = tenant_holder("acme")
        sessions = [await fleet.create(created_by="k", limits=LARGE, avoid=("w2",)) for _ in range(2)]
        await fleet.run_for(TIMINGS.lease_s + TIMINGS.lost_after_s + MARGIN_S, dead=("w1",))
        two = Use(2, 3000, 2048)
        assert await fleet.directory.use(acme) == two
        # A take-over needs no room under the limits: the lost session has it.
        taken, buried = sessions[0][0], sessions[1][0]
        place = await fleet.place(takes_over=taken.id, at_most=CallerLimits(sessions=2), limits=LARGE)
        assert await fleet.directory.use(acme) == two
        await fleet.record(place, replace(taken, generation=2))
        assert await fleet.directory.use(acme) == two
        assert await fleet.directory.bury(ended(buried))
        assert await fleet.directory.use(key_holder("k")) == Use(1, 1500, 1024)
        # Its worker comes back, and does not count it again.
        lease = await fleet.join("w1", last_epoch=1)
        await fleet.directory.record(lease, [SessionEntry(buried), SessionEntry(taken)])
        assert await fleet.directory.use(acme) == Use(1, 1500, 1024)
