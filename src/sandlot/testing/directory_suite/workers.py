"""Leases: one process per worker id, epochs that only grow, and the states that others see."""

from __future__ import annotations

import pytest

from sandlot.domain.errors import Conflict, InvalidRequest
from sandlot.fleet.directory.contract import Fenced, Room, SessionEntry, WorkerCard, WorkerReport, WorkerState
from sandlot.testing.directory_suite.harness import MARGIN_S, TIMINGS, Cases, Fleet, a_session


async def states(fleet: Fleet) -> dict[str, WorkerState]:
    return {status.ref.id: status.ref.state for status in await fleet.directory.workers()}


class WorkerCases(Cases):
    async def test_joins_and_is_seen(self, fleet: Fleet) -> None:
        lease = await fleet.join("w1")
        assert (lease.worker_id, lease.epoch) == ("w1", 1)
        report = WorkerReport(room={"base": Room(2, 9), "data": Room(0, 9)}, sessions=3)
        beat = await fleet.directory.report(lease, report)
        assert beat.generation == lease.generation
        assert beat.intact
        (status,) = await fleet.harness.other.workers()
        assert (status.ref.id, status.ref.url, status.ref.epoch) == ("w1", "http://w1:8000", 1)
        assert (status.ref.state, status.version, status.report) == (WorkerState.ALIVE, "1.0", report)
        assert 0 < status.lease_left_s <= TIMINGS.lease_s

    async def test_lease_ends_without_reports(self, fleet: Fleet) -> None:
        await fleet.offer("w1")
        await fleet.offer("w2")
        await fleet.run_for(TIMINGS.lease_s + MARGIN_S, dead=("w1",))
        assert await states(fleet) == {"w1": WorkerState.LATE, "w2": WorkerState.ALIVE}
        await fleet.run_for(TIMINGS.lost_after_s, dead=("w1",))
        assert await states(fleet) == {"w1": WorkerState.GONE, "w2": WorkerState.ALIVE}

    async def test_late_worker_comes_back_with_its_lease(self, fleet: Fleet) -> None:
        lease = await fleet.offer("w1")
        await fleet.harness.pass_time(TIMINGS.lease_s + MARGIN_S)
        await fleet.directory.report(lease, WorkerReport())
        assert await states(fleet) == {"w1": WorkerState.ALIVE}

    async def test_two_processes_with_one_id(self, fleet: Fleet) -> None:
        """The second cannot join, even with the first one's data. The first continues."""
        lease = await fleet.offer("w1")
        for last_epoch in (0, lease.epoch):
            with pytest.raises(Conflict, match="already running in another process") as caught:
                await fleet.harness.other.join(
                    WorkerCard("w1", "http://elsewhere", "1.0"), "second", last_epoch=last_epoch
                )
            assert not isinstance(caught.value, Fenced)
            assert caught.value.retry_after_s is not None
            assert 0 < caught.value.retry_after_s <= TIMINGS.lease_s
        await fleet.directory.report(lease, WorkerReport())

    async def test_same_process_joins_again(self, fleet: Fleet) -> None:
        first = await fleet.join("w1")
        second = await fleet.join("w1")
        assert second.epoch == first.epoch + 1
        with pytest.raises(Fenced) as caught:
            await fleet.directory.report(first, WorkerReport())
        assert caught.value.replaced

    async def test_frozen_beyond_its_lease_and_replaced(self, fleet: Fleet) -> None:
        """The directory fences the old process on every call that it may try."""
        session = a_session()
        old = await fleet.offer("w1")
        await fleet.directory.record(old, [SessionEntry(session)])
        await fleet.harness.pass_time(TIMINGS.lease_s + MARGIN_S)
        new = await fleet.join("w1", token="another")
        assert new.epoch == old.epoch + 1
        for call in (
            lambda: fleet.directory.report(old, WorkerReport()),
            lambda: fleet.directory.record(old, [SessionEntry(a_session())]),
            lambda: fleet.directory.forget(old, [session.id]),
            lambda: fleet.directory.leave(old),
        ):
            with pytest.raises(Fenced) as caught:
                await call()
            assert caught.value.replaced
        await fleet.directory.report(new, WorkerReport())
        await fleet.settle()
        assert await fleet.count() == 1

    async def test_a_stolen_epoch_needs_its_token(self, fleet: Fleet) -> None:
        lease = await fleet.join("w1")
        forged = type(lease)(lease.worker_id, lease.epoch, "other", lease.generation)
        with pytest.raises(Fenced):
            await fleet.directory.report(forged, WorkerReport())

    async def test_epoch_grows_over_an_emptied_directory(self, fleet: Fleet) -> None:
        lease = await fleet.join("w1", last_epoch=6)
        assert lease.epoch == 7
        await fleet.harness.empty()
        with pytest.raises(Fenced) as caught:
            await fleet.directory.report(lease, WorkerReport())
        assert not caught.value.replaced
        again = await fleet.join("w1", last_epoch=lease.epoch)
        assert again.epoch == 8
        assert again.generation != lease.generation

    async def test_a_later_epoch_than_the_directory_knows_wins(self, fleet: Fleet) -> None:
        """After a failover, the directory may know only the previous process, as alive."""
        old = await fleet.join("w1")
        ahead = type(old)("w1", old.epoch + 1, "newer", old.generation)
        with pytest.raises(Fenced) as caught:
            await fleet.directory.report(ahead, WorkerReport())
        assert not caught.value.replaced
        again = await fleet.join("w1", token="newer", last_epoch=ahead.epoch)
        assert again.epoch == ahead.epoch + 1

    async def test_leaves_with_nothing(self, fleet: Fleet) -> None:
        lease = await fleet.offer("w1")
        await fleet.directory.leave(lease)
        assert await states(fleet) == {}
        with pytest.raises(Fenced) as caught:
            await fleet.directory.report(lease, WorkerReport())
        assert not caught.value.replaced
        assert (await fleet.join("w1")).epoch == lease.epoch + 1

    async def test_leaves_with_sessions(self, fleet: Fleet) -> None:
        """The worker is late at once and keeps its sessions; its next process can join at once."""
        lease = await fleet.offer("w1")
        session = a_session()
        await fleet.directory.record(lease, [SessionEntry(session)])
        await fleet.directory.leave(lease)
        assert await states(fleet) == {"w1": WorkerState.LATE}
        with pytest.raises(Fenced) as caught:
            await fleet.directory.report(lease, WorkerReport())
        assert not caught.value.replaced
        await fleet.join("w1", token="next process")
        found = await fleet.directory.find(session.id)
        assert found is not None
        assert (found.worker.state, found.worker.epoch) == (WorkerState.ALIVE, lease.epoch + 1)

    @pytest.mark.parametrize("name", ["", "a:s", "two words", "x" * 64, "ü"])
    async def test_names_that_cannot_be(self, fleet: Fleet, name: str) -> None:
        with pytest.raises(InvalidRequest):
            await fleet.join(name)
