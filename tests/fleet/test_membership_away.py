"""What a worker does when the directory was away, or it was away itself."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from sandlot.domain.errors import Unavailable
from sandlot.domain.session import Session
from sandlot.fleet.directory.contract import Directory, Room, Timings
from sandlot.fleet.directory.memory import MemoryDirectory
from sandlot.testing.directory_suite.harness import DirectoryHarness, a_session, ended
from sandlot.testing.eventually import eventually
from tests.fleet.crew import GONE_AFTER_S, Crew, Fleet, recorded_for, some_sessions, taken_over

# --- the directory was away -------------------------------------------------------------------


async def test_emptied_directory_is_filled_again(fleet: Fleet, harness: DirectoryHarness) -> None:
    """All sessions are recorded, none is given up, and only then it says so."""
    crew = Crew(*some_sessions(130))
    membership = await fleet.start(crew)
    await fleet.complete()
    fleet.directory.waits["record"] = asyncio.Event()
    await harness.empty()
    fleet.directory.reports.clear()
    await eventually(lambda: len(fleet.directory.reports) >= 2, 30)
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


async def _has_metadata(directory: Directory, session: Session, metadata: Mapping[str, str]) -> bool:
    found = await directory.find(session.id)
    return found is not None and found.session.metadata == metadata


async def test_change_is_recorded_before_it_returns(fleet: Fleet, harness: DirectoryHarness) -> None:
    session = a_session()
    membership = await fleet.start(Crew(session))
    await fleet.complete()
    await membership.changed(replace(session, metadata={"a": "1"}), None)
    assert await _has_metadata(harness.directory, session, {"a": "1"})


async def test_change_does_not_wait_for_ever(
    fleet: Fleet, harness: DirectoryHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sandlot.fleet.membership.recorder.RECORD_WITHIN_S", 0.2)
    session = a_session()
    membership = await fleet.start(Crew(session))
    await fleet.complete()
    fleet.directory.waits["record"] = asyncio.Event()
    async with asyncio.timeout(5):
        await membership.changed(replace(session, metadata={"a": "1"}), None)
        await membership.changed(replace(session, metadata={"a": "2"}), None)
    fleet.directory.waits.pop("record").set()
    await eventually(lambda: _has_metadata(harness.directory, session, {"a": "2"}))


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
    await eventually(lambda: _has_metadata(harness.directory, session, {"a": "2"}))


async def test_starts_without_a_directory_and_joins_when_it_comes(
    fleet: Fleet, harness: DirectoryHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sandlot.fleet.membership.membership.JOIN_WITHIN_S", 0.3)
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


async def test_calls_that_wait_do_not_make_it_report_without_end(fleet: Fleet) -> None:
    membership = await fleet.start(Crew(*some_sessions(1)))
    await fleet.complete()
    fleet.directory.waits["record"] = asyncio.Event()
    fleet.slept += GONE_AFTER_S
    calls = [asyncio.create_task(membership.confirm()) for _ in range(3)]
    await eventually(lambda: fleet.directory.calls["record"] >= 2)
    reports = fleet.directory.calls["report"]
    await asyncio.sleep(0.5)
    assert not any(call.done() for call in calls)
    assert fleet.directory.calls["report"] - reports <= 5, "reports do not hasten what is waited for"
    fleet.directory.waits.pop("record").set()
    await asyncio.gather(*calls)


async def test_doubt_that_cannot_be_ended_refuses(
    fleet: Fleet, harness: DirectoryHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sandlot.fleet.membership.membership.CONFIRM_WITHIN_S", 0.3)
    membership = await fleet.start(Crew(*some_sessions(1)))
    await fleet.complete()
    fleet.directory.waits["record"] = asyncio.Event()
    fleet.slept += GONE_AFTER_S
    with pytest.raises(Unavailable) as refused:
        await membership.confirm()
    assert refused.value.details["reason"] == "in_doubt"
    assert not refused.value.may_have_executed
    fleet.directory.waits.pop("record").set()
    monkeypatch.undo()
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
