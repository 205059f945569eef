"""A worker in its fleet: joining, living, and what it does when the directory or it was away."""

from __future__ import annotations

import asyncio
import shutil
import time
from dataclasses import replace
from pathlib import Path

import pytest

from sandlot.domain.errors import Conflict, Unavailable
from sandlot.domain.session import Session
from sandlot.fleet.directory import (
    Directory,
    Place,
    Room,
    SessionEntry,
    Timings,
    Want,
    WorkerCard,
    WorkerState,
)
from sandlot.fleet.memory import MemoryDirectory
from sandlot.testing.directory_suite.harness import SECONDS_OVER, TIMINGS, DirectoryHarness, a_session, ended
from tests.fleet.crew import (
    GONE_AFTER_S,
    Crew,
    Fleet,
    eventually,
    recorded_for,
    settled,
    some_sessions,
    taken_over,
)

# --- joining and living -----------------------------------------------------------------------


async def test_joins_with_its_room_and_sessions(fleet: Fleet, harness: DirectoryHarness) -> None:
    crew = Crew(*some_sessions(120))
    membership = await fleet.start(crew)
    assert membership.joined
    assert not membership.fenced
    await fleet.complete()
    assert await recorded_for(harness.directory, "w1") == crew.session_ids
    (status,) = await harness.directory.workers()
    assert status.at.state is WorkerState.ALIVE
    assert status.report is not None
    assert (status.report.room, status.report.sessions) == ({"base": Room(4, 30)}, 120)
    assert membership.problem is None
    await membership.confirm()


async def test_says_what_changes_at_once(fleet: Fleet, harness: DirectoryHarness) -> None:
    """Warm sandboxes, a drain: not only when the next report is due, which is seconds away."""
    crew = Crew()
    await fleet.start(crew)
    await fleet.complete()
    began = time.monotonic()
    crew.warm = 9
    await eventually(lambda: fleet.directory.reports[-1].room == {"base": Room(9, 150)})
    crew.draining = True
    await eventually(lambda: fleet.directory.reports[-1].draining)
    assert time.monotonic() - began < TIMINGS.lease_s / 3, "only with the next report that was due anyway"
    quiet = len(fleet.directory.reports)
    await asyncio.sleep(0.6)
    assert len(fleet.directory.reports) <= quiet + 1  # nothing changed: nothing to say


async def test_a_lease_is_kept(folder: Path) -> None:
    """Over many leases of real time, with a directory that counts real time."""
    directory = MemoryDirectory(timings=Timings(lease_s=0.6, lost_after_s=0.6))
    fleet = Fleet(directory, folder)
    membership = await fleet.start(Crew())
    states = set()
    for _ in range(40):
        await asyncio.sleep(0.05)
        (status,) = await directory.workers()
        states.add(status.at.state)
    await membership.close()
    assert WorkerState.GONE not in states
    assert WorkerState.ALIVE in states
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
    assert status.at.state is WorkerState.LATE
    assert status.recorded == 2


async def test_what_was_changed_last_is_recorded_before_it_leaves(
    fleet: Fleet, harness: DirectoryHarness
) -> None:
    session = a_session()
    crew = Crew(session)
    membership = await fleet.start(crew)
    await fleet.complete()
    await asyncio.gather(membership.changed(ended(session), None), membership.close())
    await harness.pass_time(TIMINGS.lease_s + SECONDS_OVER)
    found = await harness.directory.find(session.id)
    assert found is not None
    assert found.session.ended_at is not None


# --- one worker, one process ------------------------------------------------------------------


async def test_second_process_in_the_same_folder_refuses_to_start(fleet: Fleet, folder: Path) -> None:
    await fleet.start(Crew())
    with pytest.raises(Conflict, match=r"another worker .* works in .*w1"):
        fleet.member("other", folder / "w1").lock()


async def test_second_worker_with_the_same_id_refuses_to_start(fleet: Fleet, folder: Path) -> None:
    first = await fleet.start(Crew())
    with pytest.raises(Conflict, match="alive in another process"):
        await fleet.start(Crew(), folder=folder / "elsewhere")
    await first.confirm()


async def test_copied_folder_is_another_worker(fleet: Fleet, folder: Path) -> None:
    """As when a machine is cloned: it must not go on with the lease of the first."""
    await fleet.start(Crew())
    shutil.copytree(folder / "w1", folder / "clone")
    with pytest.raises(Conflict, match="alive in another process"):
        await fleet.start(Crew(), folder=folder / "clone")


async def test_restart_goes_on_at_once(fleet: Fleet, harness: DirectoryHarness) -> None:
    """Although the lease of the process that died is still alive: the folder is the proof."""
    crew = Crew(*some_sessions(3))
    first = await fleet.start(crew)
    await fleet.complete()
    before = (await harness.directory.workers())[0].at.epoch
    await fleet.die(first)
    await fleet.start(crew)
    await fleet.complete()
    (status,) = await harness.directory.workers()
    assert status.at.epoch == before + 1
    assert crew.given_up == []


async def test_epoch_grows_although_the_directory_was_emptied(
    fleet: Fleet, harness: DirectoryHarness
) -> None:
    crew = Crew()
    for _ in range(3):
        await fleet.die(await fleet.start(crew))
    await harness.empty()
    await fleet.start(crew)
    assert (await harness.directory.workers())[0].at.epoch == 4


async def test_replaced_worker_refuses_everything(fleet: Fleet, harness: DirectoryHarness) -> None:
    session = a_session()
    membership = await fleet.start(Crew(session))
    await fleet.complete()
    card = WorkerCard("w1", "http://other:8000", "1.0")
    await harness.directory.join(card, "another process", last_epoch=99)
    fleet.slept += TIMINGS.lease_s + 1  # so that it asks
    with pytest.raises(Unavailable, match="another process") as refused:
        await membership.confirm()
    assert refused.value.details["reason"] == "fenced"
    assert membership.fenced
    assert not membership.joined
    with pytest.raises(Unavailable) as unrecorded:
        await membership.opened(a_session(), None, None)
    assert not unrecorded.value.may_have_executed
    await membership.changed(ended(session), None)
    assert (await harness.directory.workers())[0].at.url == "http://other:8000"


# --- the directory was away -------------------------------------------------------------------


async def test_emptied_directory_is_filled_again(fleet: Fleet, harness: DirectoryHarness) -> None:
    """All sessions are recorded, none is given up, and only then it says so."""
    crew = Crew(*some_sessions(130))
    membership = await fleet.start(crew)
    await fleet.complete()
    fleet.directory.waits["record"] = asyncio.Event()
    fleet.directory.reports.clear()
    await harness.empty()
    await eventually(lambda: len(fleet.directory.reports) >= 2)
    assert not any(report.complete for report in fleet.directory.reports)
    fleet.directory.waits.pop("record").set()
    await fleet.complete()
    assert await recorded_for(harness.directory, "w1") == crew.session_ids
    assert crew.given_up == []
    await membership.confirm()


async def test_calls_go_on_while_the_directory_is_away(fleet: Fleet, harness: DirectoryHarness) -> None:
    crew = Crew(*some_sessions(2))
    membership = await fleet.start(crew)
    await fleet.complete()
    fleet.directory.cut()
    await eventually(lambda: membership.problem == "the directory is away")
    reports = fleet.directory.calls["report"]
    for _ in range(50):
        # Longer and longer: its lease is over many times, and no call waits for that.
        fleet.slept += 1.0
        await membership.confirm()
        await asyncio.sleep(0.02)
    assert fleet.directory.calls["report"] > reports, "it goes on trying"
    with pytest.raises(Unavailable) as refused:
        await membership.opened(a_session(), None, "reservation")
    assert refused.value.retryable
    assert not refused.value.may_have_executed
    fleet.directory.reports.clear()
    fleet.directory.mend()
    await fleet.complete()
    assert membership.problem is None
    assert crew.given_up == []


async def test_changes_are_recorded_later_when_the_directory_was_away(
    fleet: Fleet, harness: DirectoryHarness
) -> None:
    sessions = some_sessions(3)
    crew = Crew(*sessions)
    membership = await fleet.start(crew)
    await fleet.complete()
    fleet.directory.cut()
    await eventually(lambda: membership.problem is not None)
    began = time.monotonic()
    for session in sessions:
        await membership.changed(replace(session, metadata={"of": "before"}), None)
        await membership.changed(ended(session), None)
        del crew.sessions[session.id]
    assert time.monotonic() - began < 2.0, "nobody waits for what is known to be away"
    fleet.directory.mend()
    await eventually(lambda: _ended(harness.directory, sessions))


async def _ended(directory: Directory, sessions: list[Session]) -> bool:
    found = [await directory.find(session.id) for session in sessions]
    return all(one is not None and one.session.ended_at is not None for one in found)


async def test_change_is_recorded_before_it_returns(fleet: Fleet, harness: DirectoryHarness) -> None:
    session = a_session()
    membership = await fleet.start(Crew(session))
    await fleet.complete()
    await membership.changed(replace(session, metadata={"a": "1"}), None)
    found = await harness.directory.find(session.id)
    assert found is not None
    assert found.session.metadata == {"a": "1"}


async def test_change_does_not_wait_for_ever(
    fleet: Fleet, harness: DirectoryHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sandlot.fleet.recorder.TELL_WITHIN_S", 0.2)
    session = a_session()
    membership = await fleet.start(Crew(session))
    await fleet.complete()
    fleet.directory.waits["record"] = asyncio.Event()
    async with asyncio.timeout(5):
        await membership.changed(replace(session, metadata={"a": "1"}), None)
        await membership.changed(replace(session, metadata={"a": "2"}), None)
    fleet.directory.waits.pop("record").set()

    async def is_the_latest() -> bool:
        found = await harness.directory.find(session.id)
        return found is not None and found.session.metadata == {"a": "2"}

    await eventually(is_the_latest)


async def test_slow_record_delays_no_report(folder: Path) -> None:
    directory = MemoryDirectory(timings=Timings(lease_s=0.6, lost_after_s=60.0))
    fleet = Fleet(directory, folder)
    fleet.directory.waits["record"] = asyncio.Event()
    await fleet.start(Crew(*some_sessions(2)))
    await eventually(lambda: fleet.directory.calls["record"] == 1)
    reports = fleet.directory.calls["report"]
    await eventually(lambda: fleet.directory.calls["report"] >= reports + 4)
    assert fleet.directory.calls["record"] == 1
    await fleet.close()


async def test_no_failure_ends_the_loops(fleet: Fleet, harness: DirectoryHarness) -> None:
    session = a_session()
    crew = Crew(session)
    membership = await fleet.start(crew)
    await fleet.complete()
    fleet.directory.broken |= {"report", "record"}
    await membership.changed(replace(session, metadata={"a": "1"}), None)
    crew.warm = 1
    await eventually(lambda: fleet.directory.calls["record"] >= 2 and fleet.directory.calls["report"] >= 3)
    fleet.directory.mend()
    await eventually(lambda: fleet.directory.reports[-1].room == {"base": Room(1, 149)})
    await membership.changed(replace(session, metadata={"a": "2"}), None)

    async def is_the_latest() -> bool:
        found = await harness.directory.find(session.id)
        return found is not None and found.session.metadata == {"a": "2"}

    await eventually(is_the_latest)


async def test_starts_without_a_directory_and_joins_when_it_comes(
    fleet: Fleet, harness: DirectoryHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sandlot.fleet.membership.JOIN_WITHIN_S", 0.3)
    fleet.directory.cut()
    crew = Crew(*some_sessions(2))
    membership = await fleet.start(crew)
    assert not membership.joined
    assert membership.problem == "the directory is away"
    await membership.confirm()
    fleet.directory.mend()
    await fleet.complete()
    assert membership.joined
    assert await recorded_for(harness.directory, "w1") == crew.session_ids


# --- it was away itself -----------------------------------------------------------------------


async def test_worker_that_slept_gives_up_what_was_taken_over_before_it_obeys(
    fleet: Fleet, harness: DirectoryHarness
) -> None:
    gone, kept = some_sessions(2)
    crew = Crew(gone, kept)
    membership = await fleet.start(crew)
    await fleet.complete()
    fleet.directory.cut()  # nothing of it runs while the machine sleeps
    await taken_over(harness, gone)
    fleet.directory.mend()
    fleet.slept += GONE_AFTER_S
    fleet.directory.waits["record"] = asyncio.Event()
    call = asyncio.create_task(membership.confirm())
    await eventually(lambda: fleet.directory.calls["record"] >= 2)
    await asyncio.sleep(0.1)
    assert not call.done(), "a call was let through before it was known whose the session is"
    fleet.directory.waits.pop("record").set()
    await call
    assert crew.given_up == [gone.id]
    assert crew.session_ids == {kept.id}


@pytest.mark.parametrize("answered", [True, False], ids=["answered", "timed out"])
async def test_answer_from_before_the_sleep_says_nothing_about_now(
    fleet: Fleet, harness: DirectoryHarness, answered: bool
) -> None:
    """A report was under way when the machine stopped; its answer is read when it wakes, or its time is over
    then, which does not mean that the directory is out of reach.
    """
    (gone,) = some_sessions(1)
    crew = Crew(gone)
    membership = await fleet.start(crew)
    await fleet.complete()
    fleet.directory.waits["report"] = answer = asyncio.Event()
    if not answered:
        fleet.directory.unanswered.add("report")
    crew.warm = 1
    reports = fleet.directory.calls["report"]
    await eventually(lambda: fleet.directory.calls["report"] > reports)
    fleet.directory.unanswered.clear()
    await taken_over(harness, gone)
    fleet.slept += GONE_AFTER_S
    fleet.directory.waits["report"] = fresh = asyncio.Event()
    answer.set()
    call = asyncio.create_task(membership.confirm())
    await eventually(lambda: fleet.directory.calls["report"] > reports + 1)
    await asyncio.sleep(0.05)
    assert not call.done(), "let through by what was said before the sleep"
    del fleet.directory.waits["report"]
    fresh.set()
    await call
    assert crew.given_up == [gone.id]


async def test_doubt_that_cannot_be_ended_refuses(
    fleet: Fleet, harness: DirectoryHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sandlot.fleet.membership.CONFIRM_WITHIN_S", 0.3)
    membership = await fleet.start(Crew(*some_sessions(1)))
    await fleet.complete()
    fleet.directory.waits["record"] = asyncio.Event()
    fleet.slept += GONE_AFTER_S
    with pytest.raises(Unavailable) as refused:
        await membership.confirm()
    assert refused.value.details["reason"] == "in_doubt"
    assert not refused.value.may_have_executed
    fleet.directory.waits.pop("record").set()
    await membership.confirm()


async def test_worker_cut_off_gives_up_what_was_taken_over_when_it_is_back(
    fleet: Fleet, harness: DirectoryHarness
) -> None:
    gone, kept = some_sessions(2)
    crew = Crew(gone, kept)
    membership = await fleet.start(crew)
    await fleet.complete()
    fleet.directory.cut()
    await eventually(lambda: membership.problem is not None)
    anew = await taken_over(harness, gone)
    fleet.slept += GONE_AFTER_S
    await membership.changed(replace(gone, metadata={"late": "1"}), None)
    fleet.directory.mend()
    await eventually(lambda: crew.given_up == [gone.id])
    await fleet.complete()
    found = await harness.directory.find(gone.id)
    assert found is not None
    assert (found.worker.id, found.session.generation, found.session.metadata) == ("w2", anew.generation, {})
    assert crew.session_ids == {kept.id}


async def test_restarted_worker_gives_up_what_was_taken_over(fleet: Fleet, harness: DirectoryHarness) -> None:
    gone, kept = some_sessions(2)
    crew = Crew(gone, kept)
    await fleet.die(await fleet.start(crew))
    await taken_over(harness, gone)
    membership = await fleet.start(crew)
    await membership.confirm()
    assert crew.given_up == [gone.id]


# --- spread -----------------------------------------------------------------------------------


async def test_ninety_sessions_spread_over_three_workers(fleet: Fleet, harness: DirectoryHarness) -> None:
    """Whoever reports first has warm sandboxes first; all the same none gets more than its share."""
    crews = {name: Crew() for name in ("w1", "w2", "w3")}
    members = {name: await fleet.start(crew, name) for name, crew in crews.items()}
    await fleet.complete()
    await settled(harness, fleet)
    for membership in members.values():
        membership._contact.hurry.set()

    async def refill(crew: Crew) -> None:
        while True:
            await asyncio.sleep(0.05)
            crew.warm = min(4, crew.warm + 1)

    refills = [asyncio.create_task(refill(crew)) for crew in crews.values()]
    try:
        await eventually(lambda: _all_alive(harness.directory, 3))
        for _ in range(90):
            place = await harness.directory.place(Want("default", "base"))
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


async def _all_alive(directory: Directory, count: int) -> bool:
    workers = await directory.workers()
    return [status.at.state for status in workers] == [WorkerState.ALIVE] * count
