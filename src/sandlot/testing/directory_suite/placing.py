"""Placing: which worker gets a create, which room it takes, and when that room is free again."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from sandlot.fleet.directory.contract import Place, PlacementRequest, Room, SessionEntry, WorkerReport
from sandlot.testing.directory_suite.harness import (
    MARGIN_S,
    TIMINGS,
    Cases,
    Fleet,
    a_session,
    refused,
)

ANY = PlacementRequest("acme", "base")


class PlacingCases(Cases):
    async def test_warm_room_first(self, fleet: Fleet) -> None:
        await fleet.offer("cold", warm=0, free=100)
        await fleet.offer("warm", warm=2, free=10)
        taken = [await fleet.place() for _ in range(3)]
        assert [place.worker.id for place in taken] == ["warm", "warm", "cold"]
        assert not any(place.known for place in taken)
        assert len({place.reservation for place in taken}) == 3
        assert taken[0].worker.url == "http://warm:8000"

    async def test_most_room_of_those_that_are_warm(self, fleet: Fleet) -> None:
        await fleet.offer("w1", warm=1, free=100)
        await fleet.offer("w2", warm=3, free=10)
        assert [(await fleet.place()).worker.id for _ in range(2)] == ["w1", "w2"]

    async def test_pools_that_refill_at_once_spread_the_load(self, fleet: Fleet) -> None:
        """The sizes of the pools do not matter."""
        sessions = Counter[str]()
        for _ in range(30):
            for name, warm in (("w1", 2), ("w2", 5), ("w3", 20)):
                await fleet.offer(name, warm=warm, free=100 - sessions[name])
            place = await fleet.place()
            await fleet.record(place, a_session())
            sessions[place.worker.id] += 1
        assert sessions == {"w1": 10, "w2": 10, "w3": 10}

    async def test_creates_are_shared_out_by_the_room_that_is_left(self, fleet: Fleet) -> None:
        """O9: a new, empty worker gets its share of the creates, and not all of them."""
        room = {"w1": 30, "w2": 30}
        sessions = Counter[str]()

        async def create(times: int) -> list[str]:
            made = []
            for _ in range(times):
                for name, free in room.items():
                    await fleet.offer(name, warm=5, free=free - sessions[name])
                place = await fleet.place()
                await fleet.record(place, a_session())
                made.append(place.worker.id)
                sessions[place.worker.id] += 1
            return made

        assert Counter(await create(20)) == {"w1": 10, "w2": 10}
        room["new"] = 60
        made = await create(50)
        for first in (made[:10], made[:25], made):
            share = first.count("new") / len(first)
            assert 0.5 <= share <= 0.7, first  # 60 of 100
        assert abs(made.count("w1") - made.count("w2")) <= 1
        # All workers become full at the same time.
        await create(50)
        assert sessions == {"w1": 30, "w2": 30, "new": 60}

    async def test_one_of_very_many_has_something_ready(self, fleet: Fleet) -> None:
        """The warm workers come first, although their turn would be last."""
        for number in range(40):
            await fleet.offer(f"cold-{number:02}", warm=0, free=100)
        await fleet.offer("warm-1", warm=1, free=10)
        await fleet.offer("warm-2", warm=1, free=20)
        placed = [(await fleet.place()).worker.id for _ in range(3)]
        assert placed == ["warm-2", "warm-1", "cold-00"]

    async def test_a_worker_that_was_busy_does_not_catch_up(self, fleet: Fleet) -> None:
        """A worker whose pool was empty for a while takes turns as before when it is full again."""
        for _ in range(20):
            await fleet.offer("w1", warm=5, free=100)
            await fleet.offer("w2", warm=0, free=100)
            place = await fleet.place()
            assert place.worker.id == "w1"
            assert place.reservation is not None
            await fleet.directory.give_back(place.reservation)
        placed = Counter[str]()
        for _ in range(10):
            for name in ("w1", "w2"):
                await fleet.offer(name, warm=5, free=100)
            placed[(await fleet.place()).worker.id] += 1
        assert set(placed.values()) == {5}, placed

    async def test_a_large_session_takes_as_much_room(self, fleet: Fleet) -> None:
        """O9: a session with four times its environment's memory takes the room of four."""
        await fleet.offer("small", warm=3, free=3)
        lease = await fleet.offer("large", warm=0, free=9)
        places = [await fleet.place(units=4) for _ in range(2)]
        assert [place.worker.id for place in places] == ["large", "large"]
        await refused(fleet.directory.place(PlacementRequest("acme", "base", units=4)), "capacity")
        # Promised room is not offered again, whatever an old report says.
        await fleet.offer("large", warm=0, free=9)
        await refused(fleet.directory.place(PlacementRequest("acme", "base", units=4)), "capacity")
        assert places[0].reservation is not None
        assert places[1].reservation is not None
        await fleet.directory.give_back(places[0].reservation)
        assert (await fleet.place(units=4)).worker.id == "large"
        # The session took the place. From now on the room is what the worker reports.
        await fleet.directory.record(lease, [SessionEntry(a_session(), places[1].reservation)])
        await refused(fleet.directory.place(PlacementRequest("acme", "base", units=4)), "capacity")
        await fleet.offer("large", warm=0, free=9)
        assert (await fleet.place(units=5)).worker.id == "large"

    async def test_a_full_worker_has_no_warm_room(self, fleet: Fleet) -> None:
        await fleet.offer("w1", warm=5, free=1)
        assert (await fleet.place()).worker.id == "w1"
        await refused(fleet.directory.place(ANY), "capacity")

    async def test_no_worker(self, fleet: Fleet) -> None:
        await refused(fleet.directory.place(ANY), "no_worker")
        await fleet.offer("w1", environment="other")
        await refused(fleet.directory.place(ANY), "no_worker")

    async def test_only_dead_workers(self, fleet: Fleet) -> None:
        """Dead workers offer nothing, whether they were full or not."""
        await fleet.offer("w1", free=0)
        await refused(fleet.directory.place(ANY), "capacity")
        await fleet.run_for(TIMINGS.lease_s + MARGIN_S, dead=("w1",))
        await refused(fleet.directory.place(ANY), "no_worker")

    async def test_environments_are_apart(self, fleet: Fleet) -> None:
        await fleet.offer("w1", warm=1, environment="base")
        await fleet.offer("w2", warm=1, environment="data")
        assert (await fleet.place(environment="data")).worker.id == "w2"
        assert (await fleet.place(environment="base")).worker.id == "w1"

    async def test_an_environment_is_no_longer_offered(self, fleet: Fleet) -> None:
        await fleet.offer("w1", warm=1, environment="old")
        await fleet.offer("w1", warm=1, environment="new")
        await refused(fleet.directory.place(PlacementRequest("acme", "old")), "no_worker")

    async def test_dead_workers_are_passed_over(self, fleet: Fleet) -> None:
        for name in ("w1", "w2", "w3"):
            await fleet.offer(name, warm=9)
        await fleet.offer("w4", warm=1)
        await fleet.run_for(TIMINGS.lease_s + MARGIN_S, dead=("w1", "w2", "w3"))
        assert (await fleet.place()).worker.id == "w4"
        # A worker that reports again gets creates again.
        await fleet.offer("w2", warm=9)
        assert (await fleet.place()).worker.id == "w2"

    async def test_workers_to_avoid_are_passed_over_this_once(self, fleet: Fleet) -> None:
        await fleet.offer("w1", warm=9)
        await fleet.offer("w2", warm=5)
        await fleet.offer("w3", warm=0, free=1)
        assert (await fleet.place(avoid=("w1",))).worker.id == "w2"
        assert (await fleet.place(avoid=("w1", "w2"))).worker.id == "w3"
        await refused(
            fleet.directory.place(PlacementRequest(ANY.tenant, ANY.environment, avoid=("w1", "w2", "w3"))),
            "capacity",
        )
        assert (await fleet.place()).worker.id == "w1"

    async def test_a_draining_worker_gets_nothing_new(self, fleet: Fleet) -> None:
        lease = await fleet.offer("w1", warm=9)
        await fleet.offer("w2", warm=1)
        await fleet.directory.report(lease, WorkerReport(room={"base": Room(9, 9)}, draining=True))
        assert {(await fleet.place()).worker.id for _ in range(5)} == {"w2"}

    async def test_a_joined_again_worker_offers_nothing_yet(self, fleet: Fleet) -> None:
        await fleet.offer("w1", warm=9)
        await fleet.join("w1")
        await refused(fleet.directory.place(ANY), "no_worker")

    async def test_what_is_promised_is_not_offered_again(self, fleet: Fleet) -> None:
        """A report from before the last placements does not offer their room a second time."""
        await fleet.offer("w1", warm=2, free=2)
        await fleet.offer("w2", free=1)
        place = await fleet.place()
        await fleet.offer("w1", warm=2, free=2)
        # One of the two warm sandboxes is left. It comes before the other worker's cold place.
        assert [(await fleet.place()).worker.id for _ in range(2)] == ["w1", "w2"]
        await refused(fleet.directory.place(ANY), "capacity")
        await fleet.record(place, a_session())
        await fleet.offer("w1", warm=1, free=1)
        # One place is used and reported, and one is promised.
        await refused(fleet.directory.place(ANY), "capacity")

    async def test_given_back(self, fleet: Fleet) -> None:
        await fleet.offer("w1", warm=1, free=1)
        await fleet.offer("w2", free=1)
        place = await fleet.place()
        assert place.reservation is not None
        assert await fleet.harness.other.give_back(place.reservation)
        assert not await fleet.directory.give_back(place.reservation)
        # The place counts as warm again.
        assert [(await fleet.place()).worker.id for _ in range(2)] == ["w1", "w2"]
        await refused(fleet.directory.place(ANY), "capacity")

    async def test_nothing_comes_back_of_what_was_recorded(self, fleet: Fleet) -> None:
        await fleet.offer("w1", warm=1, free=1)
        place = await fleet.place()
        assert place.reservation is not None
        await fleet.record(place, a_session())
        assert not await fleet.directory.give_back(place.reservation)
        await refused(fleet.directory.place(ANY), "capacity")

    async def test_a_reservation_has_its_time(self, fleet: Fleet) -> None:
        """The reservation of a coordinator that died expires."""
        await fleet.offer("w1", warm=1, free=1)
        await fleet.place()
        assert (await fleet.directory.status()).reservations == 1
        await fleet.run_for(TIMINGS.reservation_s - MARGIN_S)
        await refused(fleet.directory.place(ANY), "capacity")
        await fleet.run_for(2 * MARGIN_S)
        assert (await fleet.directory.status()).reservations == 0
        assert (await fleet.place()).worker.id == "w1"

    @pytest.mark.parametrize(("workers", "places", "tolerance"), [(3, 90, 0.2), (10, 300, 0.1)])
    async def test_load_is_spread(self, fleet: Fleet, workers: int, places: int, tolerance: float) -> None:
        """Two coordinators place at once while workers refill and report their pools."""
        sessions: Counter[str] = Counter()
        names = [f"w{number}" for number in range(workers)]
        for name in names:
            await fleet.offer(name, warm=5, free=100)
        clients = (fleet.directory, fleet.harness.other)
        for _ in range(10):
            calls = [clients[number % 2].place(ANY) for number in range(places // 10)]
            for place in await asyncio.gather(*calls):
                assert isinstance(place, Place)
                sessions[place.worker.id] += 1
                await fleet.record(place, a_session())
            for name in names:
                await fleet.offer(name, warm=5, free=100 - sessions[name])
        even = places / workers
        assert sum(sessions.values()) == places
        assert all(abs(sessions[name] - even) <= tolerance * even for name in names), sessions
