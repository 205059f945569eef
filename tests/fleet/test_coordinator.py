"""What a coordinator does when things go as they should and when they do not."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import httpx
import pytest

from sandlot.domain.callers.limits import Allowance, CallerLimits, tenant_holder
from sandlot.domain.callers.principal import OWNER
from sandlot.domain.capacity.limits import LimitChange
from sandlot.domain.errors import (
    Busy,
    EngineTimeout,
    InvalidRequest,
    SandboxLost,
    SandlotError,
    SessionEnded,
    StorageFull,
    ThreadDiffers,
    Unavailable,
)
from sandlot.domain.execution import ExecRequest
from sandlot.domain.session import CreateSession, SessionState
from sandlot.fleet.coordinator import host
from sandlot.fleet.coordinator.options import CoordinatorOptions
from sandlot.fleet.coordinator.session_locations import SessionLocations
from sandlot.fleet.directory.contract import WorkerCard
from sandlot.fleet.signing_keys import SigningKey
from sandlot.testing.eventually import eventually
from tests.fleet.fakes import TIMINGS, FleetFake, Scene, nobody
from tests.service.served import served


async def test_a_create_goes_to_the_worker_with_most_room_and_carries_its_place(scene: Scene) -> None:
    opened = await scene.coordinator.create_session(CreateSession(thread="t"))
    assert opened.created
    (assignment,) = scene.workers["w1"].assignments
    assert assignment.reservation is not None
    assert (await scene.directory.status()).reservations == 0  # it came back with the record
    again = await scene.coordinator.create_session(CreateSession(thread="t"))
    assert (again.session.id, again.created) == (opened.session.id, False)
    assert not scene.workers["w2"].assignments


async def test_any_coordinator_finds_what_another_made(scene: Scene) -> None:
    opened = await scene.coordinator.create_session(CreateSession())
    other = scene.another()
    result = await other.execute(opened.session.id, ExecRequest("echo found"))
    assert result.stdout == b"found\n"
    assert [session.id for session in (await other.list_sessions()).sessions] == [opened.session.id]


async def test_a_worker_that_cannot_be_reached_is_passed_over(scene: Scene) -> None:
    dead = scene.workers["w3"] = FleetFake(scene.directory, "w3")
    await scene.join("w3", nobody(), warm=99)
    opened = await scene.coordinator.create_session(CreateSession(thread="t"))
    assert len(scene.workers["w1"].assignments) == 1
    assert not dead.assignments
    assert (await scene.directory.status()).reservations == 0
    found = await scene.directory.find(opened.session.id)
    assert found is not None
    assert found.worker.id == "w1"


async def test_a_large_session_asks_for_as_much_room(scene: Scene) -> None:
    """O9: w1 has room for 9 of the usual size, w2 for 5."""
    large = CreateSession(limits=LimitChange(memory_bytes=6 * 512 * 1024**2))
    await scene.coordinator.create_session(large)
    assert len(scene.workers["w1"].assignments) == 1
    with pytest.raises(Unavailable) as full:
        await scene.coordinator.create_session(large)
    assert full.value.details["reason"] == "capacity"


async def test_a_worker_that_is_full_after_all_is_passed_over(scene: Scene) -> None:
    scene.workers["w1"].refusal = Unavailable("full", details={"reason": "capacity"})
    await scene.coordinator.create_session(CreateSession())
    assert len(scene.workers["w2"].assignments) == 1


@pytest.mark.parametrize(
    "refusal",
    [
        StorageFull("no room on the disk"),
        EngineTimeout("the engine does not answer", may_have_executed=False),
        Busy("too many at once", retry_after_s=1.0),
    ],
)
async def test_what_passes_with_time_is_asked_of_another_worker_at_once(
    scene: Scene, refusal: SandlotError
) -> None:
    """O5: a full disk, as an example, is the trouble of one machine."""
    scene.workers["w1"].refusal = refusal
    await scene.coordinator.create_session(CreateSession())
    assert (len(scene.workers["w1"].assignments), len(scene.workers["w2"].assignments)) == (1, 1)
    scene.workers["w2"].refusal = StorageFull("no room here either")
    with pytest.raises(StorageFull, match="no room here either"):
        await scene.coordinator.create_session(CreateSession())


async def test_what_the_request_is_to_blame_for_is_asked_once(scene: Scene) -> None:
    scene.workers["w1"].refusal = InvalidRequest("more than this server allows")
    with pytest.raises(InvalidRequest, match="more than"):
        await scene.coordinator.create_session(CreateSession())
    assert not scene.workers["w2"].assignments


async def test_what_may_have_been_made_is_not_made_elsewhere(scene: Scene) -> None:
    scene.workers["w1"].refusal = Unavailable("half done", may_have_executed=True)
    with pytest.raises(Unavailable, match="half done"):
        await scene.coordinator.create_session(CreateSession(thread="t"))
    assert not scene.workers["w2"].assignments
    # Its place is kept: who asks again is sent to the same worker.
    scene.workers["w1"].refusal = None
    assert (await scene.coordinator.create_session(CreateSession(thread="t"))).created
    assert len(scene.workers["w1"].assignments) == 2


async def test_a_token_that_a_worker_does_not_take_is_no_fault_of_the_client(scene: Scene) -> None:
    opened = await scene.coordinator.create_session(CreateSession())
    stranger = scene.another(key=SigningKey.generate("k1"))
    for call in (
        stranger.execute(opened.session.id, ExecRequest("true")),
        stranger.create_session(CreateSession()),
    ):
        with pytest.raises(Unavailable, match="rejected this coordinator's token") as refused:
            await call
        assert (refused.value.retryable, refused.value.may_have_executed) == (True, False)
    assert (await scene.directory.status()).reservations == 0


async def test_a_refused_create_gives_its_place_back(scene: Scene) -> None:
    scene.workers["w1"].refusal = InvalidRequest("never")
    with pytest.raises(InvalidRequest):
        await scene.coordinator.create_session(CreateSession(thread="t"))
    assert (await scene.directory.status()).reservations == 0


async def test_an_unknown_environment_is_refused_here(scene: Scene) -> None:
    with pytest.raises(InvalidRequest, match="Unknown environment 'nope'"):
        await scene.coordinator.create_session(CreateSession(environment="nope"))


async def test_the_limits_of_a_tenant(scene: Scene) -> None:
    one = Allowance(tenant_holder(OWNER.tenant), CallerLimits(sessions=1))
    strict = scene.another(allowances=lambda _: [one])
    opened = await strict.create_session(CreateSession(thread="t"))
    with pytest.raises(Busy):
        await strict.create_session(CreateSession())
    assert (await strict.use(tenant_holder(OWNER.tenant))).sessions == 1
    assert (await strict.create_session(CreateSession(thread="t"))).session.id == opened.session.id


async def test_a_silent_worker_is_waited_for_then_its_sessions_are_lost(scene: Scene) -> None:
    opened = await scene.coordinator.create_session(CreateSession(thread="t"))
    other = scene.another()  # it remembers nothing
    scene.workers["w1"].lease = await scene.directory.join(WorkerCard("w1", nobody(), "1"), "token-w1")
    await scene.report("w1")
    await scene.pass_time(TIMINGS.lease_s + 1, silent=("w1",))
    with pytest.raises(Unavailable) as late:
        await other.execute(opened.session.id, ExecRequest("true"))
    assert late.value.details["reason"] == "worker_late"
    assert late.value.retryable
    with pytest.raises(Unavailable):
        await other.create_session(CreateSession(thread="t"))
    await scene.pass_time(TIMINGS.lost_after_s, silent=("w1",))
    with pytest.raises(SandboxLost) as lost:
        await other.execute(opened.session.id, ExecRequest("true"))
    assert "environment variables that the session was created with" in lost.value.details["loss"]["lost"]
    # Reported, not replaced: neither by a look, nor by asking for the thread.
    assert (await other.get_session(opened.session.id)).state is SessionState.LOST
    assert [session.state for session in (await other.list_sessions()).sessions] == [SessionState.LOST]
    asked = await other.create_session(CreateSession(thread="t"))
    assert (asked.session.id, asked.session.state, asked.created) == (
        opened.session.id,
        SessionState.LOST,
        False,
    )
    with pytest.raises(ThreadDiffers, match="its pids is 256, not 64"):  # U2
        await other.create_session(CreateSession(thread="t", limits=LimitChange(pids=64), recreate_lost=True))
    assert not scene.workers["w2"].assignments


async def test_nobody_is_sent_straight_to_a_late_worker(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It answers, so it serves through the coordinator. A token would live on when another has taken over."""
    opened = await scene.coordinator.create_session(CreateSession(thread="t"))
    assert scene.coordinator.access(OWNER, opened.session) is not None
    (at,) = [status.ref for status in await scene.directory.workers() if status.ref.id == "w1"]
    await scene.pass_time(TIMINGS.lease_s + TIMINGS.lost_after_s - 1, silent=("w1",))
    # As after some seconds, in which what it knows of a living worker has become old.
    with monkeypatch.context() as later:
        later.setattr(scene.coordinator._locations, "_fresh_s", 0.0)
        assert (await scene.coordinator.execute(opened.session.id, ExecRequest("echo on"))).stdout == b"on\n"
    session = await scene.coordinator.get_session(opened.session.id)
    assert session.state is SessionState.ACTIVE
    assert scene.coordinator.access(OWNER, session) is None
    # Whoever asked before: a list says who is late as well.
    scene.coordinator._locations.remember(opened.session, at)
    assert scene.coordinator.access(OWNER, session) is not None
    await scene.coordinator.list_sessions(thread="t")
    assert scene.coordinator.access(OWNER, session) is None
    await scene.pass_time(2, silent=("w1",))
    with pytest.raises(SandboxLost):  # what was known a moment ago is not used
        await scene.coordinator.execute(opened.session.id, ExecRequest("true"))


async def test_what_was_known_long_ago_makes_no_new_token(scene: Scene) -> None:
    """As after a command of minutes: the worker was alive when it began."""
    opened = await scene.coordinator.create_session(CreateSession(thread="t"))
    locations = scene.coordinator._locations
    given = scene.coordinator.access(OWNER, opened.session)
    now = locations._clock()
    locations._clock = lambda: now + locations._fresh_s + 20
    later = scene.coordinator.access(OWNER, opened.session)
    assert given is not None
    assert later is not None
    assert later.expires_at - given.expires_at == pytest.approx(-20, abs=5)
    locations._clock = lambda: now + locations._fresh_s + 31  # of 60 that a token has here
    assert scene.coordinator.access(OWNER, opened.session) is None
    await scene.coordinator.list_sessions(thread="t")
    assert scene.coordinator.access(OWNER, opened.session) is not None


async def test_a_create_that_took_long_makes_a_shorter_token(scene: Scene) -> None:
    """What is known of the worker is as old as the answer of the directory."""
    locations = scene.coordinator._locations
    quick = await scene.coordinator.create_session(CreateSession(thread="quick"))
    given = scene.coordinator.access(OWNER, quick.session)
    for worker in scene.workers.values():
        worker.lets_create.clear()
    slow = asyncio.create_task(scene.coordinator.create_session(CreateSession(thread="slow")))
    await eventually(lambda: sum(len(worker.assignments) for worker in scene.workers.values()) == 2)
    now = locations._clock()
    locations._clock = lambda: now + locations._fresh_s + 20
    for worker in scene.workers.values():
        worker.lets_create.set()
    later = scene.coordinator.access(OWNER, (await slow).session)
    assert given is not None
    assert later is not None
    assert later.expires_at - given.expires_at == pytest.approx(-20, abs=5)


async def test_a_session_that_was_taken_over_meanwhile_is_not_called_lost(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = (await scene.coordinator.create_session(CreateSession(thread="t"))).session
    await scene.pass_time(TIMINGS.lease_s + TIMINGS.lost_after_s + 1, silent=("w1",))
    anew = replace(session, generation=2)
    other = scene.another()
    locations = other._locations

    async def worker_of(tenant: str, session_id: str) -> None:
        try:
            await SessionLocations.worker_of(locations, tenant, session_id)
        finally:
            await scene.workers["w2"].record(anew)

    monkeypatch.setattr(locations, "worker_of", worker_of)
    assert await other.get_session(session.id) == anew


async def test_a_lost_session_is_given_to_another_worker_when_asked(scene: Scene) -> None:
    opened = await scene.coordinator.create_session(CreateSession(thread="t"))
    await scene.pass_time(TIMINGS.lease_s + TIMINGS.lost_after_s + 1, silent=("w1",))
    other = scene.another()
    await other.recreate_session(opened.session.id)
    (assignment,) = scene.workers["w2"].assignments
    assert assignment.lost is not None
    assert (assignment.lost.id, assignment.lost.thread) == (opened.session.id, "t")
    assert assignment.reservation is not None


async def test_a_lost_session_can_be_deleted(scene: Scene) -> None:
    opened = await scene.coordinator.create_session(CreateSession(thread="t"))
    await scene.pass_time(TIMINGS.lease_s + TIMINGS.lost_after_s + 1, silent=("w1",))
    other = scene.another()
    await other.delete_session(opened.session.id)
    with pytest.raises(SessionEnded, match="was deleted"):
        await other.get_session(opened.session.id)
    await other.delete_session(opened.session.id)  # once more is no error
    assert (await other.create_session(CreateSession(thread="t"))).created
    assert scene.workers["w2"].assignments[-1].predecessor is not None


async def test_access_is_handed_out_for_living_sessions_of_living_workers(scene: Scene) -> None:
    opened = await scene.coordinator.create_session(CreateSession())
    access = scene.coordinator.access(OWNER, opened.session)
    assert access is not None
    found = await scene.directory.find(opened.session.id)
    assert found is not None
    assert access.url == found.worker.url
    assert scene.coordinator.access(OWNER, replace(opened.session, state=SessionState.LOST)) is None
    assert scene.another(CoordinatorOptions(direct=False)).access(OWNER, opened.session) is None


async def test_health_counts_workers_and_names_those_that_are_missing(scene: Scene) -> None:
    await scene.coordinator.create_session(CreateSession())
    await scene.report("w1", warm=3)
    await scene.pass_time(TIMINGS.lease_s + 1, silent=("w2",))
    strict = scene.another(CoordinatorOptions(expected=("http://10.0.0.9:8000",)))
    health = await strict.health()
    assert (health.ready, health.workers, health.active_sessions) == (True, 1, 1)
    assert health.pools["base"].ready == 5
    assert set(health.problems) == {"worker w2 is late", "worker http://10.0.0.9:8000 has not joined"}


async def test_a_coordinator_sweeps_workers_that_are_long_gone(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also after a sweep that failed."""
    monkeypatch.setattr(host, "SWEEP_EVERY_S", 0.01)
    sweep, failures = scene.directory.sweep, [RuntimeError("broken"), Unavailable("Redis is away")]

    async def failing_first(limit: int = 100) -> int:
        if failures:
            raise failures.pop()
        return await sweep(limit)

    monkeypatch.setattr(scene.directory, "sweep", failing_first)
    scene.now += TIMINGS.lost_after_s + TIMINGS.remember_lost_s + TIMINGS.lease_s + 1
    await scene.report("w1")
    assert [status.ref.id for status in await scene.directory.workers()] == ["w1", "w2"]
    scene.coordinator.start_sweeping()

    async def swept() -> bool:
        return [status.ref.id for status in await scene.directory.workers()] == ["w1"]

    await eventually(swept)
    assert not failures


async def test_draining_is_passed_on_and_taken_back(scene: Scene) -> None:
    """O11: without a body, as an operator sends it by hand, and with one, as earlier versions do."""
    async with (
        served(scene.coordinator, fleet=scene.coordinator.operations) as url,
        httpx.AsyncClient(base_url=f"{url}/v1/fleet/workers") as http,
    ):
        for body in (None, {}):
            assert (await http.post("/w2/drain", json=body)).status_code == 204
            assert scene.workers["w2"].draining
            assert (await http.post("/w2/undrain", json=body)).status_code == 204
            assert not scene.workers["w2"].draining
    with pytest.raises(InvalidRequest, match="Unknown worker 'w9'"):
        await scene.coordinator.operations.set_draining("w9", True)


async def test_u2_other_options_than_the_threads_session_has(scene: Scene) -> None:
    first = CreateSession(thread="t", env={"TOKEN": "one"})
    opened = await scene.coordinator.create_session(first)
    other = CreateSession(thread="t", env={"TOKEN": "two"})
    for coordinator in (scene.coordinator, scene.another()):
        with pytest.raises(ThreadDiffers, match="its variables differ in TOKEN") as refused:
            await coordinator.create_session(other)
        assert refused.value.details["different"] == ["env"]
        kept = await coordinator.create_session(replace(other, if_different="keep"))
        assert (kept.session.id, kept.created) == (opened.session.id, False)
    assert (await scene.directory.status()).reservations == 0


async def test_a_loss_is_told_with_the_time_from_which_nobody_heard_of_the_worker(scene: Scene) -> None:
    """O10: it was told with the session's creation."""
    opened = await scene.coordinator.create_session(CreateSession(thread="t"))
    asked_at = time.time()
    old = replace(opened.session, created_at=asked_at - 1000, last_active_at=asked_at - 900)
    await scene.workers["w1"].record(old)
    await scene.pass_time(TIMINGS.lease_s + TIMINGS.lost_after_s + 30, silent=("w1",))
    by_list = (await scene.coordinator.list_sessions()).sessions[0]
    by_id = await scene.coordinator.get_session(opened.session.id)
    by_thread = (await scene.coordinator.create_session(CreateSession(thread="t"))).session
    with pytest.raises(SandboxLost) as by_call:
        await scene.coordinator.execute(opened.session.id, ExecRequest("true"))
    for session in (by_list, by_id, by_thread):
        assert session.loss is not None
        # Its lease was over 90 s ago.
        assert session.loss.at == pytest.approx(asked_at - 90, abs=5)
    assert by_call.value.details["loss"]["at"] == pytest.approx(asked_at - 90, abs=5)
