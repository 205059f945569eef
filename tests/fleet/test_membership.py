"""A worker in its fleet: joining, living, being the only one of its name, and getting its share."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from sandlot.domain.errors import Conflict, Unavailable
from sandlot.fleet.directory.contract import (
    Place,
    PlacementRequest,
    Room,
    SessionEntry,
    Timings,
    WorkerCard,
    WorkerState,
)
from sandlot.fleet.directory.memory import MemoryDirectory
from sandlot.testing.directory_suite.harness import MARGIN_S, TIMINGS, DirectoryHarness, a_session, ended
from sandlot.testing.eventually import eventually
from tests.fleet.crew import Crew, Fleet, recorded_for, settled, some_sessions

# --- joining and living -----------------------------------------------------------------------


async def test_joins_with_its_room_and_sessions(fleet: Fleet, harness: DirectoryHarness) -> None:
    crew = Crew(*some_sessions(120))
    membership = await fleet.start(crew)
    assert membership.joined
    assert not membership.fenced
    await fleet.complete()
    assert await recorded_for(harness.directory, "w1") == crew.session_ids
    (status,) = await harness.directory.workers()
    assert status.ref.state is WorkerState.ALIVE
    assert status.report is not None
    assert (status.report.room, status.report.sessions) == ({"base": Room(4, 30)}, 120)
    assert membership.problem is None
    await membership.confirm()


async def test_says_what_changes_at_once(
    fleet: Fleet, harness: DirectoryHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Warm sandboxes, a drain: not only when the next report is due, which is minutes away here."""
    monkeypatch.setattr("sandlot.fleet.membership.membership.REPORTS_PER_LEASE", TIMINGS.lease_s / 600)
    crew = Crew()
    await fleet.start(crew)
    await fleet.complete()
    crew.warm = 9
    await eventually(lambda: fleet.directory.reports[-1].room == {"base": Room(9, 150)})
    crew.draining = True
    await eventually(lambda: fleet.directory.reports[-1].draining)
    quiet = len(fleet.directory.reports)
    await asyncio.sleep(0.6)
    assert len(fleet.directory.reports) == quiet  # nothing changed: nothing to say


async def test_a_lease_is_kept(folder: Path) -> None:
    """Over many leases of real time, with a directory that counts real time."""
    directory = MemoryDirectory(timings=Timings(lease_s=0.6, lost_after_s=0.6))
    fleet = Fleet(directory, folder)
    membership = await fleet.start(Crew())
    alive = 0
    for _ in range(40):
        await asyncio.sleep(0.05)
        (status,) = await directory.workers()
        alive += status.ref.state is WorkerState.ALIVE
    await membership.close()
    # Not all: where the machine itself stood still, nobody could report. Without reports it would be twelve.
    assert alive >= 30
    assert fleet.directory.calls["join"] == 1
    assert fleet.directory.calls["report"] >= 5


async def test_worker_that_is_still_recovering_forgets_nothing(
    fleet: Fleet, harness: DirectoryHarness
) -> None:
    """Before it has read its own memory it has no sessions to show, and says that it is not complete."""
    session = a_session()
    lease = await harness.directory.join(WorkerCard("w1", "http://w1:8000", "1.0"), "an earlier process")
    await harness.directory.record(lease, [SessionEntry(session)])
    await harness.directory.leave(lease)
    crew = Crew()
    crew.is_open = False
    await fleet.start(crew)
    await eventually(lambda: fleet.directory.reports)
    await asyncio.sleep(0.3)
    assert await recorded_for(harness.directory, "w1") == {session.id}
    assert not any(report.complete for report in fleet.directory.reports)
    crew.sessions[session.id] = (session, None)
    crew.is_open = True
    await fleet.complete()
    assert await recorded_for(harness.directory, "w1") == {session.id}


async def test_leaves_when_it_closes(fleet: Fleet, harness: DirectoryHarness) -> None:
    crew = Crew(*some_sessions(2))
    membership = await fleet.start(crew)
    await fleet.complete()
    await membership.close()
    (status,) = await harness.directory.workers()
    assert status.ref.state is WorkerState.LATE
    assert status.recorded == 2


async def test_what_was_changed_last_is_recorded_before_it_leaves(
    fleet: Fleet, harness: DirectoryHarness
) -> None:
    session = a_session()
    crew = Crew(session)
    membership = await fleet.start(crew)
    await fleet.complete()
    await asyncio.gather(membership.changed(ended(session), None), membership.close())
    await harness.pass_time(TIMINGS.lease_s + MARGIN_S)
    found = await harness.directory.find(session.id)
    assert found is not None
    assert found.session.ended_at is not None


# --- one worker, one process ------------------------------------------------------------------


async def test_second_process_in_the_same_folder_refuses_to_start(fleet: Fleet, folder: Path) -> None:
    await fleet.start(Crew())
    with pytest.raises(Conflict, match=r"Another worker .* uses .*w1"):
        fleet.member("other", folder / "w1").lock()


async def test_second_worker_with_the_same_id_refuses_to_start(fleet: Fleet, folder: Path) -> None:
    first = await fleet.start(Crew())
    with pytest.raises(Conflict, match="already running in another process"):
        await fleet.start(Crew(), folder=folder / "elsewhere")
    await first.confirm()


async def test_copied_folder_is_another_worker(fleet: Fleet, folder: Path) -> None:
    """As when a machine is cloned: it must not go on with the lease of the first."""
    await fleet.start(Crew())
    shutil.copytree(folder / "w1", folder / "clone")
    with pytest.raises(Conflict, match="already running in another process"):
        await fleet.start(Crew(), folder=folder / "clone")


async def test_restart_goes_on_at_once(fleet: Fleet, harness: DirectoryHarness) -> None:
    """Although the lease of the process that died is still alive: the folder is the proof."""
    crew = Crew(*some_sessions(3))
    first = await fleet.start(crew)
    await fleet.complete()
    before = (await harness.directory.workers())[0].ref.epoch
    await fleet.die(first)
    await fleet.start(crew)
    await fleet.complete()
    (status,) = await harness.directory.workers()
    assert status.ref.epoch == before + 1
    assert crew.given_up == []


async def test_epoch_grows_although_the_directory_was_emptied(
    fleet: Fleet, harness: DirectoryHarness
) -> None:
    crew = Crew()
    for _ in range(3):
        await fleet.die(await fleet.start(crew))
    await harness.empty()
    await fleet.start(crew)
    assert (await harness.directory.workers())[0].ref.epoch == 4


async def test_replaced_worker_refuses_everything(fleet: Fleet, harness: DirectoryHarness) -> None:
    session = a_session()
    membership = await fleet.start(Crew(session))
    await fleet.complete()
    card = WorkerCard("w1", "http://other:8000", "1.0")
    await harness.directory.join(card, "another process", last_epoch=99)
    fleet.slept += TIMINGS.lease_s + 1  # so that it asks
    with pytest.raises(Unavailable, match="Another process") as refused:
        await membership.confirm()
    assert refused.value.details["reason"] == "fenced"
    assert membership.fenced
    assert not membership.joined
    with pytest.raises(Unavailable) as unrecorded:
        await membership.opened(a_session(), None, None)
    assert not unrecorded.value.may_have_executed
    await membership.changed(ended(session), None)
    assert (await harness.directory.workers())[0].ref.url == "http://other:8000"


# --- spread -----------------------------------------------------------------------------------


async def test_ninety_sessions_spread_over_three_workers(fleet: Fleet, harness: DirectoryHarness) -> None:
    """Whoever reports first has warm sandboxes first; all the same none gets more than its share."""
    crews = {name: Crew() for name in ("w1", "w2", "w3")}
    members = {name: await fleet.start(crew, name) for name, crew in crews.items()}
    await fleet.complete()
    await settled(harness, fleet)

    async def refill(crew: Crew) -> None:
        while True:
            await asyncio.sleep(0.05)
            crew.warm = min(4, crew.warm + 1)

    refills = [asyncio.create_task(refill(crew)) for crew in crews.values()]
    try:
        for _ in range(90):
            place = await harness.directory.place(PlacementRequest("default", "base"))
            assert isinstance(place, Place)
            crew, session = crews[place.worker.id], a_session(tenant="default")
            crew.warm = max(0, crew.warm - 1)
            await members[place.worker.id].opened(session, None, place.reservation)
            crew.sessions[session.id] = (session, None)
            await asyncio.sleep(0.02)
    finally:
        for task in refills:
            task.cancel()
        await asyncio.wait(refills)
    shares = sorted(len(crew.sessions) for crew in crews.values())
    assert sum(shares) == 90
    assert shares[0] >= 24, shares
    assert shares[-1] <= 36, shares
