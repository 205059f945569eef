"""What a worker records of its sessions, and what the directory is made to forget."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from sandlot.domain.errors import StorageFull, Unavailable
from sandlot.domain.session import Session, SessionState
from sandlot.fleet.directory.contract import (
    Place,
    PlacementRequest,
    SessionEntry,
    Timings,
    WorkerCard,
)
from sandlot.fleet.directory.redis_directory import RedisDirectory
from sandlot.fleet.membership import membership as membership_module
from sandlot.fleet.membership.membership import Membership
from sandlot.fleet.membership.recorder import ACTIVITY_AFTER_S
from sandlot.testing.directory_suite.harness import DirectoryHarness, a_session
from sandlot.testing.directory_suite.redis_server import RedisServer, redis_server
from sandlot.testing.eventually import eventually
from tests.fleet.crew import Crew, Fleet, recorded_for, settled, some_sessions

# --- opening ----------------------------------------------------------------------------------


async def opens(membership: Membership, session: Session, key: str | None = None) -> None:
    """As a worker does with a new one."""
    with membership.opening(session.id, new=True):
        await membership.opened(session, key, None)


async def holds_nothing(harness: DirectoryHarness) -> bool:
    """That it was told to forget does not mean yet that it has."""
    return await recorded_for(harness.directory, "w1") == set()


async def test_opened_session_takes_its_place(fleet: Fleet, harness: DirectoryHarness) -> None:
    membership = await fleet.start(Crew())
    await fleet.complete()
    await settled(harness, fleet)
    place = await harness.directory.place(PlacementRequest("default", "base", thread="t"))
    assert isinstance(place, Place)
    assert (await harness.directory.status()).reservations == 1
    session = a_session(tenant="default", thread="t")
    await membership.opened(session, "key", place.reservation)
    status = await harness.directory.status()
    assert (status.sessions, status.reservations) == (1, 0)
    again = await harness.directory.place(PlacementRequest("default", "base", idempotency_key="key"))
    assert isinstance(again, Place)
    assert again.known


@pytest.mark.parametrize("trouble", ["failing", "unanswered", "broken"])
async def test_session_that_could_not_be_recorded_never_was(
    fleet: Fleet, harness: DirectoryHarness, trouble: str
) -> None:
    """Also where the directory has it and nobody heard so."""
    membership = await fleet.start(Crew())
    await fleet.complete()
    getattr(fleet.directory, trouble).add("record")
    session = a_session(tenant="default", thread="t")
    with pytest.raises(RuntimeError if trouble == "broken" else Unavailable):
        await opens(membership, session, "key")
    if trouble == "unanswered":
        assert await recorded_for(harness.directory, "w1") == {session.id}
    fleet.directory.mend()
    await eventually(lambda: fleet.directory.calls["forget"] == 1)
    await eventually(lambda: holds_nothing(harness))


async def test_create_that_is_given_up_never_was(fleet: Fleet, harness: DirectoryHarness) -> None:
    membership = await fleet.start(Crew())
    await fleet.complete()
    fleet.directory.waits["record"] = asyncio.Event()
    session = a_session()
    create = asyncio.create_task(opens(membership, session))
    await eventually(lambda: recorded_for(harness.directory, "w1"))
    create.cancel()
    with pytest.raises(asyncio.CancelledError):
        await create
    fleet.directory.waits.pop("record").set()
    await eventually(lambda: holds_nothing(harness))


async def test_session_that_got_no_sandbox_after_it_was_recorded_never_was(
    fleet: Fleet, harness: DirectoryHarness
) -> None:
    membership = await fleet.start(Crew())
    await fleet.complete()
    session = a_session()

    async def dies() -> None:
        with membership.opening(session.id, new=True):
            await membership.opened(session, None, None)
            assert await recorded_for(harness.directory, "w1") == {session.id}
            raise ValueError("no sandbox")

    with pytest.raises(ValueError, match="no sandbox"):
        await dies()
    await eventually(lambda: fleet.directory.calls["forget"] == 1)
    await eventually(lambda: holds_nothing(harness))


async def test_session_of_which_nobody_was_told_costs_the_directory_nothing(fleet: Fleet) -> None:
    """No sandbox was to be had, or there is no lease: there is nothing to take back."""
    membership = await fleet.start(Crew())
    await fleet.complete()
    held = fleet.directory.calls["held"]
    with pytest.raises(ValueError, match="no sandbox"), membership.opening(a_session().id, new=True):
        raise ValueError("no sandbox")
    await asyncio.sleep(0.1)
    assert (fleet.directory.calls["forget"], fleet.directory.calls["held"]) == (0, held)


async def test_all_are_asked_for_between_the_record_and_the_end_of_a_create(
    fleet: Fleet, harness: DirectoryHarness
) -> None:
    """An emptied directory: what is being opened is not with the worker yet, and must be told of again."""
    crew = Crew(a_session())
    membership = await fleet.start(crew)
    await fleet.complete()
    session = a_session()
    with membership.opening(session.id, new=True):
        await membership.opened(session, None, None)
        lease = membership._contact.lease
        assert lease is not None
        await harness.directory.forget(lease, [session.id, *crew.sessions])
        membership._recorder.record_all()
        await eventually(lambda: membership._recorder.complete)
        assert await recorded_for(harness.directory, "w1") == set(crew.sessions), "and it is not forgotten"
        crew.sessions[session.id] = (session, None)

    async def is_recorded() -> bool:
        return await recorded_for(harness.directory, "w1") == set(crew.sessions)

    await eventually(is_recorded)


async def test_outbox_that_overflows_loses_nothing(fleet: Fleet, harness: DirectoryHarness) -> None:
    crew = Crew(*some_sessions(5))
    membership = await fleet.start(crew)
    await fleet.complete()
    recorder = membership._recorder
    recorder._outbox._max = 10
    fleet.directory.waits["record"] = held = asyncio.Event()
    for session in some_sessions(30):
        crew.sessions[session.id] = (replace(session, thread=None), None)
        recorder._outbox.put(SessionEntry(crew.sessions[session.id][0]))
    recorder._outbox._max = 1000
    fleet.directory.waits.clear()
    held.set()
    recorder.wake()

    async def all_are_there() -> bool:
        return await recorded_for(harness.directory, "w1") == set(crew.sessions)

    await eventually(all_are_there)
    await eventually(lambda: recorder.complete)


async def test_what_is_given_up_is_not_waited_for(fleet: Fleet, harness: DirectoryHarness) -> None:
    """A session turns out to be another's while all are recorded: the rest is complete without it."""
    taken, kept = some_sessions(2)
    membership = await fleet.start(Crew(taken, kept))
    await fleet.complete()
    recorder = membership._recorder
    recorder._unrecorded = {taken.id}
    recorder._outbox.put(SessionEntry(taken))
    await recorder._give_up(frozenset({taken.id}))
    recorder.wake()
    await eventually(lambda: recorder.complete)


async def test_record_that_comes_after_it_was_taken_back_is_forgotten_too(
    fleet: Fleet, harness: DirectoryHarness
) -> None:
    """A Redis that hung does what it was sent in any order."""
    kept, late = some_sessions(2)
    membership = await fleet.start(Crew(kept))
    await fleet.complete()
    fleet.directory.failing.add("record")
    fleet.directory.waits["forget"] = forgotten = asyncio.Event()
    with pytest.raises(Unavailable):
        await opens(membership, late)
    fleet.directory.mend()
    await eventually(lambda: fleet.directory.calls["forget"] == 1)
    lease = membership._contact.lease
    assert lease is not None
    await harness.directory.record(lease, [SessionEntry(late)])
    fleet.directory.waits.clear()
    forgotten.set()

    async def is_forgotten() -> bool:
        return await recorded_for(harness.directory, "w1") == {kept.id}

    await eventually(is_forgotten)


async def test_known_session_is_not_forgotten_for_a_record_that_failed(
    fleet: Fleet, harness: DirectoryHarness
) -> None:
    """A reservation came for a session that is here; and one that was taken over from elsewhere."""
    here, taken = some_sessions(2)
    taken = replace(taken, generation=2)
    membership = await fleet.start(Crew(here))
    await fleet.complete()
    fleet.directory.unanswered.add("record")
    with pytest.raises(Unavailable):
        await membership.opened(here, None, "reservation")
    with pytest.raises(Unavailable), membership.opening(taken.id, new=False):
        await membership.opened(taken, None, "reservation")
    fleet.directory.mend()
    await membership.changed(here, None)
    await eventually(lambda: len(membership._recorder._outbox) == 0)
    assert fleet.directory.calls["forget"] == 0


async def test_thread_that_has_its_session_elsewhere(fleet: Fleet, harness: DirectoryHarness) -> None:
    lease = await harness.directory.join(WorkerCard("w2", "http://w2:8000", "1.0"), "other")
    theirs = a_session(tenant="default", thread="t")
    await harness.directory.record(lease, [SessionEntry(theirs)])
    ours = a_session(tenant="default", thread="t")
    membership = await fleet.start(Crew())
    await fleet.complete()
    with pytest.raises(Unavailable, match="another worker") as refused:
        await membership.opened(ours, None, None)
    assert not refused.value.may_have_executed
    assert await recorded_for(harness.directory, "w1") == set()


# --- what the directory holds and the worker has not ------------------------------------------


async def left_by_an_earlier_w1(harness: DirectoryHarness, *sessions: Session) -> None:
    lease = await harness.directory.join(WorkerCard("w1", "http://w1:8000", "1.0"), "an earlier process")
    await harness.directory.record(lease, [SessionEntry(session) for session in sessions])
    await harness.directory.leave(lease)


async def test_a_worker_in_the_place_of_one_whose_disk_is_gone_tells_of_the_loss(
    fleet: Fleet, harness: DirectoryHarness
) -> None:
    """The same name, as of a machine that was replaced, and a folder of its first day."""
    strange = a_session(thread="t")
    await left_by_an_earlier_w1(harness, strange)
    await fleet.start(Crew(a_session()))
    await fleet.complete()

    async def told() -> bool:
        found = await harness.directory.find(strange.id)
        return found is not None and found.session.state is SessionState.LOST

    await eventually(told)
    found = await harness.directory.find(strange.id)
    assert found is not None
    assert found.session.loss is not None
    assert found.worker.id == "w1"


async def test_nothing_is_served_before_the_losses_are_known(fleet: Fleet, harness: DirectoryHarness) -> None:
    """A thread would begin anew, and its loss be told to nobody."""
    strange = a_session(thread="t")
    await left_by_an_earlier_w1(harness, strange)
    fleet.directory.waits["find"] = asyncio.Event()
    crew = Crew()
    membership = await fleet.start(crew)
    call = asyncio.create_task(membership.confirm())
    await eventually(lambda: fleet.directory.calls["find"] == 1)
    await asyncio.sleep(0.05)
    assert not call.done()
    fleet.directory.waits.pop("find").set()
    await call
    assert crew.session_ids == {strange.id}


async def test_a_loss_that_cannot_be_told_keeps_nobody_waiting(
    fleet: Fleet, harness: DirectoryHarness
) -> None:
    bad, good = some_sessions(2)
    await left_by_an_earlier_w1(harness, bad, good)

    class Full(Crew):
        async def adopt_lost_session(self, session: Session) -> Session | None:
            if session.id == bad.id:
                raise StorageFull("no room on the disk")
            return await super().adopt_lost_session(session)

    first = await fleet.start(Full())
    await first.confirm()
    await fleet.complete()
    assert await recorded_for(harness.directory, "w1") == {bad.id, good.id}, "nothing is forgotten for it"
    await first.close()
    crew = Crew()
    await fleet.start(crew)
    await eventually(lambda: bad.id in crew.session_ids)  # told by the next start


async def test_a_loss_is_told_by_the_next_start_if_the_first_one_was_cut_short(
    fleet: Fleet, harness: DirectoryHarness
) -> None:
    strange = a_session(thread="t")
    await left_by_an_earlier_w1(harness, strange)
    fleet.directory.waits["find"] = asyncio.Event()  # about to ask what it was
    first = await fleet.start(Crew())
    await eventually(lambda: fleet.directory.calls["find"] == 1)
    await fleet.die(first)
    del fleet.directory.waits["find"]
    await fleet.start(Crew())

    async def told() -> bool:
        found = await harness.directory.find(strange.id)
        assert found is not None
        return found.session.state is SessionState.LOST

    await eventually(told)


async def test_what_is_not_here_is_forgotten(fleet: Fleet, harness: DirectoryHarness) -> None:
    first = await fleet.start(Crew())
    await fleet.complete()
    await first.close()  # its first day is over
    strange = some_sessions(60)
    await left_by_an_earlier_w1(harness, *strange)
    kept = a_session()
    await fleet.start(Crew(kept))
    await fleet.complete()
    assert await recorded_for(harness.directory, "w1") == {kept.id}


async def test_session_that_is_being_created_is_never_forgotten(
    fleet: Fleet, harness: DirectoryHarness
) -> None:
    """The page of what the directory holds is on its way back, and so is the answer to a record: the worker
    does not have the session yet, and the directory has it.
    """
    crew = Crew()
    page, answer = asyncio.Event(), asyncio.Event()
    fleet.directory.waits["held"] = page
    membership = await fleet.start(crew)
    new, done = some_sessions(2)
    await eventually(lambda: fleet.directory.calls["held"] == 1)
    page.set()  # that one was empty: once more, with something in it
    await fleet.complete()
    fleet.directory.waits["record"] = answer
    creates = [asyncio.create_task(opens(membership, session)) for session in (new, done)]

    async def both_are_recorded() -> bool:
        return len(await recorded_for(harness.directory, "w1")) == 2

    await eventually(both_are_recorded)
    fleet.directory.waits["held"] = page = asyncio.Event()
    held = fleet.directory.calls["held"]
    membership._recorder.record_all()
    await eventually(lambda: fleet.directory.calls["held"] > held)
    # One ends its create while the page is on its way, the other does not.
    del fleet.directory.waits["record"]
    crew.sessions[done.id] = (done, None)
    page.set()
    await eventually(lambda: membership._recorder.complete)
    assert fleet.directory.calls["forget"] == 0
    answer.set()
    await asyncio.gather(*creates)
    assert await recorded_for(harness.directory, "w1") == {new.id, done.id}


async def test_session_opened_while_the_directory_was_emptied_is_recorded(
    fleet: Fleet, harness: DirectoryHarness
) -> None:
    """Its record went to the directory that is no more, and it was not among those that were recorded anew."""
    crew = Crew()
    membership = await fleet.start(crew)
    await fleet.complete()
    fleet.directory.waits["record"] = answer = asyncio.Event()
    new = a_session()
    create = asyncio.create_task(opens(membership, new))
    await eventually(lambda: recorded_for(harness.directory, "w1"))
    del fleet.directory.waits["record"]
    await harness.empty()
    fleet.directory.reports.clear()  # what was complete before is not
    joins = fleet.directory.calls["join"]
    membership._contact.report_now.set()
    await eventually(lambda: fleet.directory.calls["join"] > joins)
    await fleet.complete()
    answer.set()
    await create
    crew.sessions[new.id] = (new, None)

    async def is_recorded() -> bool:
        return await recorded_for(harness.directory, "w1") == {new.id}

    await eventually(is_recorded)


# --- a Redis that fails -----------------------------------------------------------------------


@pytest_asyncio.fixture
async def own_redis() -> AsyncIterator[RedisServer]:
    with redis_server() as server:
        yield server


async def over_redis(server: RedisServer, folder: Path, work: Callable[[Fleet], Awaitable[None]]) -> None:
    directory = RedisDirectory.open(
        server.url, timings=Timings(lease_s=3.0, lost_after_s=6.0), deadline_s=1.0
    )
    fleet = Fleet(directory, folder)
    try:
        await work(fleet)
    finally:
        await fleet.close()
        await directory.close()


async def test_redis_killed_and_started_empty(own_redis: RedisServer, folder: Path) -> None:
    async def work(fleet: Fleet) -> None:
        crew = Crew(*some_sessions(70))
        membership = await fleet.start(crew)
        await fleet.complete()
        (before,) = await fleet.directory.workers()
        own_redis.kill()
        await eventually(lambda: membership.problem is not None)
        fleet.slept += 5.0
        await membership.confirm()
        own_redis.start()
        fleet.directory.reports.clear()
        await fleet.complete()
        assert await recorded_for(fleet.directory, "w1") == crew.session_ids  # type: ignore[arg-type]
        assert crew.given_up == []
        assert (await fleet.directory.workers())[0].ref.epoch > before.ref.epoch

    await over_redis(own_redis, folder, work)


async def test_redis_frozen(own_redis: RedisServer, folder: Path) -> None:
    async def work(fleet: Fleet) -> None:
        crew = Crew(*some_sessions(5))
        membership = await fleet.start(crew)
        await fleet.complete()
        own_redis.signal(signal.SIGSTOP)
        try:
            await eventually(lambda: membership.problem is not None)
            for _ in range(20):
                await membership.confirm()
                await asyncio.sleep(0.1)
            with pytest.raises(Unavailable):
                await opens(membership, a_session())
        finally:
            own_redis.signal(signal.SIGCONT)
        await fleet.complete()
        await eventually(lambda: membership.problem is None)

        async def as_it_was() -> bool:
            return await recorded_for(fleet.directory, "w1") == crew.session_ids  # type: ignore[arg-type]

        await eventually(as_it_was)  # what Redis did after it woke up is undone
        assert crew.given_up == []

    await over_redis(own_redis, folder, work)


# --- activity ---------------------------------------------------------------------------------


async def test_lists_show_times_that_are_not_old(
    fleet: Fleet, harness: DirectoryHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """O10: a session that is used is recorded again now and then; one that is not costs nothing."""
    monkeypatch.setattr(membership_module, "REPORT_ACTIVITY_EVERY_S", 0.02)
    used, idle = a_session(tenant="default"), a_session(tenant="default")
    crew = Crew(used, idle)
    await fleet.start(crew)
    await fleet.complete()
    records = fleet.directory.calls["record"]
    await asyncio.sleep(0.2)
    assert fleet.directory.calls["record"] == records, "nothing has changed"
    times = [used.last_active_at + 1, used.last_active_at + ACTIVITY_AFTER_S + 1]
    crew.sessions[used.id] = (replace(used, last_active_at=times[0]), None)
    await asyncio.sleep(0.2)
    assert fleet.directory.calls["record"] == records, "a second is not worth a write"
    crew.sessions[used.id] = (replace(used, last_active_at=times[1]), None)

    async def shown() -> bool:
        found = await harness.directory.find(used.id)
        return found is not None and found.session.last_active_at == times[1]

    await eventually(shown, 10, "the directory knows when it was last used")
    await asyncio.sleep(0.2)
    assert fleet.directory.calls["record"] == records + 1, "and is told once"
