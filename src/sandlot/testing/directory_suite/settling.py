"""An emptied directory: it answers "unsettled" until the workers have recorded everything again."""

from __future__ import annotations

import pytest

from sandlot.domain.errors import NotFound
from sandlot.domain.ids import new_session_id
from sandlot.fleet.directory.contract import Fenced, PlacementRequest, SessionEntry, WorkerReport
from sandlot.fleet.directory.rules import MAX_SETTLING_LEASES
from sandlot.testing.directory_suite.harness import (
    MARGIN_S,
    TIMINGS,
    Cases,
    Fleet,
    a_session,
    placement_request,
    refused,
)


class SettlingCases(Cases):
    async def test_never_says_that_there_is_none(self, fleet: Fleet) -> None:
        await fleet.offer("w1", warm=5)
        directory = fleet.directory
        for call in (
            lambda: directory.find(new_session_id()),
            lambda: directory.page("acme"),
            lambda: directory.page("acme", thread="t"),
            lambda: directory.bury(a_session()),
            lambda: directory.place(PlacementRequest("acme", "base", thread="t")),
            lambda: directory.place(PlacementRequest("acme", "base", idempotency_key="k")),
            lambda: directory.place(PlacementRequest("acme", "base", takes_over=new_session_id())),
            # The directory cannot enforce a quota before it knows all sessions.
            lambda: directory.place(placement_request(max_sessions=5)),
        ):
            await refused(call(), "unsettled")
        assert not (await directory.status()).settled
        # A placement that depends on no recorded session still works.
        assert (await fleet.place()).worker.id == "w1"
        await fleet.settle()
        assert (await directory.status()).settled
        assert await directory.find(new_session_id()) is None
        assert (await directory.page("acme")).found == ()
        assert not await directory.bury(a_session())
        assert not (await fleet.place(thread="t", idempotency_key="k", max_sessions=5)).known
        with pytest.raises(NotFound):
            await fleet.place(takes_over=new_session_id())

    async def test_rebuilt_from_the_workers(self, fleet: Fleet) -> None:
        for name in ("w1", "w2"):
            await fleet.offer(name, warm=5)
        await fleet.settle()
        made = [
            (await fleet.create(thread=f"t{number}", idempotency_key=f"k{number}")) for number in range(6)
        ]
        before = await fleet.directory.status()
        await fleet.harness.empty()
        # A coordinator that asks before the workers return gets no false answer.
        await refused(fleet.directory.find(made[0][0].id), "unsettled")
        for name, lease in list(fleet.leases.items()):
            with pytest.raises(Fenced) as caught:
                await fleet.directory.report(lease, WorkerReport())
            assert not caught.value.replaced
            again = await fleet.join(name, last_epoch=lease.epoch)
            assert again.epoch == lease.epoch + 1
            assert again.generation != before.generation
            entries = [
                SessionEntry(session, idempotency_key=f"k{number}")
                for number, (session, place) in enumerate(made)
                if place.worker.id == name
            ]
            assert await fleet.directory.record(again, entries) == frozenset()
            beat = await fleet.directory.report(again, fleet.reports[name])
            assert beat.generation == again.generation
            assert not (await fleet.directory.status()).settled
        # The directory reports the sessions that it knows, settled or not.
        for number, (session, place) in enumerate(made):
            assert (await fleet.place(thread=f"t{number}")).worker.id == place.worker.id
            assert (await fleet.place(idempotency_key=f"k{number}")).worker.id == place.worker.id
            found = await fleet.directory.find(session.id)
            assert found is not None
            assert found.session == session
            assert len((await fleet.directory.page("acme", thread=f"t{number}")).found) == 1
        await fleet.settle()
        assert await fleet.count() == 6

    async def test_waits_for_a_worker_that_is_still_recording(self, fleet: Fleet) -> None:
        lease = await fleet.join("w1")
        fleet.reports["w1"] = WorkerReport(complete=False)
        await fleet.run_for(3 * TIMINGS.lease_s)
        assert not (await fleet.directory.status()).settled
        await fleet.directory.report(lease, WorkerReport())
        assert not (await fleet.directory.status()).settled
        fleet.reports["w1"] = WorkerReport()
        await fleet.run_for(TIMINGS.lease_s + MARGIN_S)
        assert (await fleet.directory.status()).settled

    async def test_but_not_for_ever(self, fleet: Fleet) -> None:
        await fleet.join("w1")
        fleet.reports["w1"] = WorkerReport(complete=False)
        await fleet.run_for(MAX_SETTLING_LEASES * TIMINGS.lease_s + MARGIN_S)
        assert (await fleet.directory.status()).settled

    async def test_what_has_settled_stays_so(self, fleet: Fleet) -> None:
        """A worker that joins later, or records again, does not make the directory unsettled."""
        await fleet.offer("w1")
        await fleet.settle()
        await fleet.directory.report(await fleet.join("w2"), WorkerReport(complete=False))
        assert (await fleet.directory.status()).settled

    async def test_a_worker_that_stays_away_is_not_lost_by_it(self, fleet: Fleet) -> None:
        """The new directory never knew the worker. Its sessions are unknown until it returns."""
        await fleet.offer("w1", warm=5)
        await fleet.settle()
        session, _ = await fleet.create(thread="t")
        await fleet.harness.empty()
        del fleet.leases["w1"]
        await fleet.offer("w2", warm=5)
        await fleet.settle()
        assert await fleet.directory.find(session.id) is None
        lease = await fleet.join("w1", last_epoch=1)
        assert await fleet.directory.record(lease, [SessionEntry(session)]) == frozenset()
        assert (await fleet.place(thread="t")).worker.id == "w1"
