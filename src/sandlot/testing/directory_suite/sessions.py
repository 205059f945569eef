"""Sessions: how the directory records, finds, lists and forgets them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sandlot.domain.capacity.limits import Limits
from sandlot.domain.errors import InvalidRequest
from sandlot.domain.ids import new_session_id
from sandlot.domain.session import EndReason, Predecessor, Session, SessionState
from sandlot.domain.session_states import lose, loss_report, recreate, touch
from sandlot.fleet.directory.contract import FoundPage, SessionEntry
from sandlot.testing.directory_suite.harness import (
    MARGIN_S,
    TIMINGS,
    Cases,
    Fleet,
    a_session,
    ended,
)


def unusual_session() -> Session:
    """A session in which no field has its default."""
    session = a_session(
        tenant="tenant with spaces:s",
        thread="~!$'()*+,;[]{}|\\^`<>\"",
        environment="data",
        created_at=1_763_190_000.123457,
        last_active_at=1_763_190_001.7654321,
        generation=3,
        idle_timeout_s=None,
        lifetime_s=12.5,
        limits=Limits(memory_bytes=1 << 31, cpus=1.25, pids=99),
        metadata={"ключ": "значение", "n": "1"},
        predecessor=Predecessor(new_session_id(), EndReason.IDLE, 1_763_189_000.5),
        sandbox_id="made-elsewhere",
    )
    return lose(session, loss_report(session, "its worker is gone", 1_763_190_002.25))


class SessionCases(Cases):
    @pytest.mark.parametrize(
        "session", [a_session(), unusual_session(), ended(a_session(thread="t")), ended(unusual_session())]
    )
    async def test_comes_back_as_it_was(self, fleet: Fleet, session: Session) -> None:
        lease = await fleet.offer("w1")
        assert await fleet.directory.record(lease, [SessionEntry(session)]) == frozenset()
        found = await fleet.harness.other.find(session.id)
        assert found is not None
        assert found.session == session
        assert (found.worker.id, found.worker.url, found.worker.epoch) == ("w1", "http://w1:8000", 1)

    async def test_unknown(self, fleet: Fleet) -> None:
        await fleet.offer("w1")
        await fleet.settle()
        assert await fleet.directory.find(new_session_id()) is None
        assert await fleet.directory.find("what?") is None

    async def test_changes_are_written_over(self, fleet: Fleet) -> None:
        lease = await fleet.offer("w1")
        await fleet.settle()
        session = a_session(thread="t")
        active = touch(session, session.last_active_at + 60)
        for state in (session, active):
            await fleet.directory.record(lease, [SessionEntry(state)])
        found = await fleet.directory.find(session.id)
        assert found is not None
        assert found.session == active
        assert await fleet.count() == 1

    async def test_ended_is_final(self, fleet: Fleet) -> None:
        """Neither a late write nor an older generation brings an ended session back."""
        lease = await fleet.offer("w1")
        await fleet.settle()
        deleted, first = a_session(), a_session()
        lost = lose(first, loss_report(first, "died", first.created_at + 1))
        second = recreate(lost, "sbx_" + "0" * 32, lost.created_at + 2)
        await fleet.directory.record(lease, [SessionEntry(ended(deleted)), SessionEntry(second)])
        assert await fleet.directory.record(lease, [SessionEntry(deleted), SessionEntry(lost)]) == frozenset()
        for expected in (ended(deleted), second):
            found = await fleet.directory.find(expected.id)
            assert found is not None
            assert found.session == expected
        assert await fleet.count() == 1

    async def test_ended_is_remembered_for_a_time(self, fleet: Fleet) -> None:
        lease = await fleet.offer("w1")
        await fleet.settle()
        session = a_session(thread="t")
        await fleet.directory.record(lease, [SessionEntry(session)])
        await fleet.directory.record(lease, [SessionEntry(ended(session))])
        assert await fleet.count() == 0
        assert (await fleet.directory.page("acme")).found == ()
        assert (await fleet.directory.page("acme", thread="t")).found == ()
        assert (await fleet.directory.held("w1")).ids == ()
        found = await fleet.directory.find(session.id)
        assert found is not None
        assert found.session.state is SessionState.ENDED
        await fleet.run_for(TIMINGS.remember_ended_s + MARGIN_S)
        assert await fleet.directory.find(session.id) is None
        assert (await fleet.place(thread="t")).previous is None

    async def test_an_end_is_the_last_also_of_an_earlier_generation(self, fleet: Fleet) -> None:
        """A recreate did not happen if its worker never got the answer to its record."""
        lease = await fleet.offer("w1")
        await fleet.settle()
        session = a_session()
        await fleet.directory.record(lease, [SessionEntry(replace(session, generation=2))])
        await fleet.directory.record(lease, [SessionEntry(session)])
        assert await fleet.count() == 1
        await fleet.directory.record(lease, [SessionEntry(ended(session))])
        assert await fleet.count() == 0
        assert (await fleet.directory.page("acme")).found == ()
        assert (await fleet.directory.held("w1")).ids == ()

    async def test_an_end_from_before_it_lived_elsewhere_is_stale(self, fleet: Fleet) -> None:
        one, session = await fleet.offer("w1"), a_session()
        await fleet.settle()
        await fleet.directory.record(one, [SessionEntry(replace(session, generation=3))])
        await fleet.directory.record(one, [SessionEntry(ended(session))])
        found = await fleet.directory.find(session.id)
        assert found is not None
        assert (found.session.state, found.session.generation) == (SessionState.ACTIVE, 3)

    async def test_forgotten(self, fleet: Fleet) -> None:
        lease = await fleet.offer("w1")
        await fleet.settle()
        session, _ = await fleet.create(thread="t", idempotency_key="k")
        await fleet.directory.forget(lease, [session.id, new_session_id()])
        await fleet.directory.forget(lease, [session.id])
        assert await fleet.directory.find(session.id) is None
        assert await fleet.count() == 0
        assert not (await fleet.place(thread="t")).known
        assert not (await fleet.place(idempotency_key="k")).known

    async def test_forgets_only_its_own(self, fleet: Fleet) -> None:
        one, two = await fleet.offer("w1"), await fleet.offer("w2")
        session = a_session()
        await fleet.directory.record(one, [SessionEntry(session)])
        await fleet.directory.forget(two, [session.id])
        assert await fleet.directory.find(session.id) is not None

    async def test_another_worker_cannot_take_it(self, fleet: Fleet) -> None:
        one, two = await fleet.offer("w1"), await fleet.offer("w2")
        session = a_session()
        await fleet.directory.record(one, [SessionEntry(session)])
        mine = a_session()
        taken = await fleet.directory.record(two, [SessionEntry(mine), SessionEntry(session)])
        assert taken == {session.id}
        found = await fleet.directory.find(session.id)
        assert found is not None
        assert found.worker.id == "w1"
        assert await fleet.directory.find(mine.id) is not None

    async def test_a_thread_has_one_living_session(self, fleet: Fleet) -> None:
        """If two workers created one each, the first record wins.

        That happens after a failover that lost a reservation.
        """
        one, two = await fleet.offer("w1"), await fleet.offer("w2")
        await fleet.settle()
        first, second = a_session(thread="t"), a_session(thread="t")
        assert await fleet.directory.record(one, [SessionEntry(first)]) == frozenset()
        assert await fleet.directory.record(two, [SessionEntry(second)]) == {second.id}
        assert await fleet.directory.find(second.id) is None
        assert (await fleet.place(thread="t")).worker.id == "w1"
        await fleet.directory.record(one, [SessionEntry(ended(first))])
        assert await fleet.directory.record(two, [SessionEntry(second)]) == frozenset()
        assert (await fleet.place(thread="t")).worker.id == "w2"

    async def test_a_late_record_beats_a_reservation_elsewhere(self, fleet: Fleet) -> None:
        one, two = await fleet.offer("w1", warm=0), await fleet.offer("w2", warm=5)
        await fleet.settle()
        place = await fleet.place(thread="t")
        assert place.worker.id == "w2"
        real, late = a_session(thread="t"), a_session(thread="t")
        assert await fleet.directory.record(one, [SessionEntry(real)]) == frozenset()
        assert (await fleet.place(thread="t")).worker.id == "w1"
        assert await fleet.directory.record(two, [SessionEntry(late, place.reservation)]) == {late.id}
        assert (await fleet.directory.status()).reservations == 0

    async def test_a_renamed_worker_takes_its_sessions_along(self, fleet: Fleet) -> None:
        """A worker with the same data and a new id takes its sessions once the old id is gone."""
        old, new = await fleet.offer("old"), await fleet.offer("new")
        session = a_session(thread="t")
        await fleet.directory.record(old, [SessionEntry(session)])
        assert await fleet.directory.record(new, [SessionEntry(session)]) == {session.id}
        await fleet.run_for(TIMINGS.lease_s + TIMINGS.lost_after_s + MARGIN_S, dead=("old",))
        assert await fleet.directory.record(new, [SessionEntry(session)]) == frozenset()
        assert (await fleet.place(thread="t")).worker.id == "new"
        assert (await fleet.directory.held("old")).ids == ()

    async def test_ended_is_final_also_for_another_worker(self, fleet: Fleet) -> None:
        old, new = await fleet.offer("old"), await fleet.offer("new")
        session = a_session(thread="t")
        await fleet.directory.record(old, [SessionEntry(ended(session))])
        await fleet.run_for(TIMINGS.lease_s + TIMINGS.lost_after_s + MARGIN_S, dead=("old",))
        assert await fleet.directory.record(new, [SessionEntry(session)]) == {session.id}
        assert not (await fleet.place(thread="t")).known

    async def test_the_youngest_is_its_threads_last(self, fleet: Fleet) -> None:
        """It does not matter in which order ended sessions are recorded after a rebuild."""
        lease = await fleet.offer("w1", warm=5)
        await fleet.settle()
        oldest, older, young = (a_session(thread="t", age=age) for age in (20.0, 10.0, 0.0))
        await fleet.directory.record(lease, [SessionEntry(ended(older)), SessionEntry(ended(oldest))])
        place = await fleet.place(thread="t")
        assert place.previous == ended(older)
        # An older record does not change that either while the next session is being created.
        await fleet.directory.record(lease, [SessionEntry(ended(oldest))])
        assert (await fleet.place(thread="t")).reservation == place.reservation
        await fleet.record(place, young)
        await fleet.directory.record(lease, [SessionEntry(ended(older))])
        assert (await fleet.place(thread="t")).known

    async def test_what_is_held_for_a_worker(self, fleet: Fleet) -> None:
        """A worker that lost its data uses the list to forget sessions that it no longer has."""
        lease = await fleet.offer("w1")
        await fleet.offer("w2")
        sessions = [a_session() for _ in range(130)]
        await fleet.directory.record(lease, [SessionEntry(session) for session in sessions])
        held: set[str] = set()
        after = None
        while True:
            page = await fleet.directory.held("w1", after=after)
            held.update(page.ids)
            after = page.next
            if after is None:
                break
        assert held == {session.id for session in sessions}
        assert (await fleet.directory.held("w2")).ids == (await fleet.directory.held("never")).ids == ()
        assert {status.ref.id: status.recorded for status in await fleet.directory.workers()} == {
            "w1": 130,
            "w2": 0,
        }


def ids(page: FoundPage) -> list[str]:
    return [found.session.id for found in page.found]


class PageCases(Cases):
    async def test_oldest_first(self, fleet: Fleet) -> None:
        one, two = await fleet.offer("w1"), await fleet.offer("w2")
        await fleet.settle()
        sessions = [a_session(age=float(number % 7)) for number in range(25)]
        for number, session in enumerate(sessions):
            await fleet.directory.record((one, two)[number % 2], [SessionEntry(session)])
        await fleet.directory.record(one, [SessionEntry(a_session(tenant="other"))])
        expected = [s.id for s in sorted(sessions, key=lambda session: (session.created_at, session.id))]
        assert ids(await fleet.directory.page("acme")) == expected
        for limit in (1, 4, 24, 25, 26):
            seen, after = [], None
            while True:
                page = await fleet.directory.page("acme", after=after, limit=limit)
                assert len(page.found) <= limit
                seen += ids(page)
                after = page.next
                if after is None:
                    break
            assert seen == expected
        assert {found.worker.id for found in (await fleet.directory.page("acme")).found} == {"w1", "w2"}

    async def test_goes_on_after_one_that_is_gone(self, fleet: Fleet) -> None:
        lease = await fleet.offer("w1")
        await fleet.settle()
        sessions = [a_session(age=float(9 - number)) for number in range(9)]
        await fleet.directory.record(lease, [SessionEntry(session) for session in sessions])
        page = await fleet.directory.page("acme", limit=3)
        await fleet.directory.forget(lease, [session.id for session in sessions[:4]])
        rest = await fleet.directory.page("acme", after=page.next)
        assert ids(rest) == [session.id for session in sessions[4:]]

    async def test_of_a_thread(self, fleet: Fleet) -> None:
        lease = await fleet.offer("w1")
        await fleet.settle()
        session = a_session(thread="t")
        await fleet.directory.record(lease, [SessionEntry(session), SessionEntry(a_session(thread="u"))])
        assert ids(await fleet.directory.page("acme", thread="t")) == [session.id]
        assert ids(await fleet.directory.page("acme", thread="v")) == []
        assert ids(await fleet.directory.page("other", thread="t")) == []

    async def test_same_instant(self, fleet: Fleet) -> None:
        lease = await fleet.offer("w1")
        await fleet.settle()
        sessions = [replace(a_session(), created_at=1_763_190_000.1234567) for _ in range(12)]
        await fleet.directory.record(lease, [SessionEntry(session) for session in sessions])
        first = await fleet.directory.page("acme", limit=5)
        second = await fleet.directory.page("acme", after=first.next, limit=5)
        third = await fleet.directory.page("acme", after=second.next, limit=5)
        assert ids(first) + ids(second) + ids(third) == sorted(session.id for session in sessions)
        assert third.next is None

    @pytest.mark.parametrize(("limit", "after"), [(0, None), (1001, None), (5, "what?"), (5, "")])
    async def test_what_cannot_be_asked(self, fleet: Fleet, limit: int, after: str | None) -> None:
        await fleet.offer("w1")
        await fleet.settle()
        with pytest.raises(InvalidRequest):
            await fleet.directory.page("acme", limit=limit, after=after)
