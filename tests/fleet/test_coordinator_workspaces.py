"""Workspaces and snapshots of a fleet: each snapshot is found on the worker that took it."""

from __future__ import annotations

import pytest

from sandlot.domain.callers.principal import ALL_SCOPES, OWNER, Principal, Scope
from sandlot.domain.errors import Forbidden, InvalidRequest, NotFound, SandboxLost, Unavailable, Unsupported
from sandlot.domain.execution import ExecRequest
from sandlot.domain.history.positions import worker_tag
from sandlot.domain.ids import new_session_id, new_snapshot_id
from sandlot.domain.service import SandboxService
from sandlot.domain.session import CreateSession, Session, SessionState
from sandlot.domain.workspaces.snapshots import RestoreSnapshot, Snapshot, SnapshotPage, TakeSnapshot
from sandlot.fleet.coordinator import asked_workers
from tests.fleet.fakes import TIMINGS, Scene, nobody

TAKE = TakeSnapshot()


async def on_each(scene: Scene) -> dict[str, Session]:
    """A session on each worker, by the worker's name."""
    found: dict[str, Session] = {}
    for _ in range(40):
        session = (await scene.coordinator.create_session(CreateSession())).session
        found.setdefault(await worker_of(scene, session), session)
        if len(found) == len(scene.workers):
            return found
    raise AssertionError("all creates went to one worker")


async def worker_of(scene: Scene, session: Session) -> str:
    found = await scene.directory.find(session.id)
    assert found is not None
    return found.worker.id


async def all_pages(service: SandboxService, limit: int, session_id: str | None = None) -> list[Snapshot]:
    found: list[Snapshot] = []
    page = await service.list_snapshots(session_id=session_id, limit=limit)
    while True:
        found += page.snapshots
        assert len(page.snapshots) <= limit
        assert page.missing == ()
        if page.next is None:
            return found
        page = await service.list_snapshots(session_id=session_id, after=page.next, limit=limit)


async def written(service: SandboxService, session: Session, text: str) -> None:
    result = await service.execute(session.id, ExecRequest(command=f"echo -n {text} > a.txt"))
    assert result.exit_code == 0


async def shown(service: SandboxService, session: Session) -> str:
    result = await service.execute(session.id, ExecRequest(command="cat a.txt"))
    return result.stdout.decode()


async def test_calls_about_a_session_go_to_its_worker(scene: Scene) -> None:
    service = scene.coordinator
    for session in (await on_each(scene)).values():
        await written(service, session, "before")
        snapshot = await service.take_snapshot(session.id, TakeSnapshot(name="mine"))
        await written(service, session, "after")
        status = await service.get_workspace(session.id)
        assert (status.workspace, status.snapshots) == (session.workspace, 1)
        restored = await service.restore_snapshot(session.id, RestoreSnapshot(snapshot.id))
        assert (restored.replaced, restored.session.generation) == (True, 2)
        assert await shown(service, session) == "before"


@pytest.mark.parametrize("limit", [1, 3, 1000])
async def test_pages_of_all_workers_are_one_list(scene: Scene, limit: int) -> None:
    sessions = list((await on_each(scene)).values())
    taken = [
        await scene.coordinator.take_snapshot(session.id, TAKE) for _ in range(4) for session in sessions
    ]
    assert [each.id for each in await all_pages(scene.coordinator, limit)] == [each.id for each in taken]
    own = await all_pages(scene.coordinator, limit, sessions[0].id)
    assert [each.id for each in own] == [each.id for each in taken if each.session_id == sessions[0].id]


async def test_a_snapshot_is_found_by_its_id(scene: Scene) -> None:
    service = scene.coordinator
    for session in (await on_each(scene)).values():
        first = await service.take_snapshot(session.id, TAKE)
        await written(service, session, "x")
        second = await service.take_snapshot(session.id, TAKE)
        assert (await service.compare_snapshot(first.id, to=second.id)).added == ("a.txt",)
        assert (await service.compare_snapshot(first.id)).added == ("a.txt",)
        for _ in range(2):
            await service.delete_snapshot(first.id)
        with pytest.raises(NotFound):
            await service.compare_snapshot(first.id)
        assert [each.id for each in await all_pages(service, 10, session.id)] == [second.id]


async def test_a_session_begins_where_its_snapshot_is(scene: Scene) -> None:
    service = scene.coordinator
    for worker, session in (await on_each(scene)).items():
        await written(service, session, "from-there")
        snapshot = await service.take_snapshot(session.id, TAKE)
        for number in range(3):
            request = CreateSession(snapshot=snapshot.id, thread=f"{worker}-{number}")
            made = (await service.create_session(request)).session
            assert await worker_of(scene, made) == worker
            assert await shown(service, made) == "from-there"
            assert not (await service.create_session(request)).created


async def test_its_worker_has_no_room(scene: Scene) -> None:
    service = scene.coordinator
    session = (await on_each(scene))["w1"]
    request = CreateSession(snapshot=(await service.take_snapshot(session.id, TAKE)).id)
    await scene.report("w1", warm=0)
    with pytest.raises(Unavailable, match="it is full") as full:
        await service.create_session(request)
    assert full.value.details == {"reason": "capacity", "worker_id": "w1"}
    scene.workers["w1"].set_draining(True)
    await scene.report("w1")
    with pytest.raises(Unavailable, match="draining"):
        await service.create_session(request)
    scene.workers["w1"].set_draining(False)
    await scene.report("w1")
    assert await worker_of(scene, (await service.create_session(request)).session) == "w1"


async def test_its_worker_is_gone(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    service = scene.coordinator
    sessions = await on_each(scene)
    taken = {name: await service.take_snapshot(session.id, TAKE) for name, session in sessions.items()}
    await scene.pass_time(TIMINGS.lease_s + TIMINGS.lost_after_s + 1, silent=("w1",))
    monkeypatch.setattr(asked_workers, "FRESH_S", 0.0)
    page = await service.list_snapshots()
    assert ([each.id for each in page.snapshots], page.missing) == ([taken["w2"].id], ("w1",))
    for call in (
        service.create_session(CreateSession(snapshot=taken["w1"].id)),
        service.compare_snapshot(taken["w1"].id),
        service.delete_snapshot(taken["w1"].id),
    ):
        with pytest.raises(Unavailable, match="w1") as gone:
            await call
        assert gone.value.details["reason"] == "worker_gone"
        assert not gone.value.retryable
    with pytest.raises(SandboxLost):
        await scene.another().take_snapshot(sessions["w1"].id, TAKE)
    # A thread that has a session on another worker still gets it.
    thread = (await service.create_session(CreateSession(thread="t"))).session
    again = await service.create_session(CreateSession(thread="t", snapshot=taken["w1"].id))
    assert (again.created, again.session.id) == (False, thread.id)


async def test_a_worker_that_does_not_answer_is_named(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    service = scene.coordinator
    sessions = await on_each(scene)
    taken = {name: await service.take_snapshot(session.id, TAKE) for name, session in sessions.items()}
    await scene.join("w2", nobody())
    monkeypatch.setattr(asked_workers, "FRESH_S", 0.0)
    page = await service.list_snapshots()
    assert ([each.id for each in page.snapshots], page.missing) == ([taken["w1"].id], ("w2",))
    with pytest.raises(Unavailable, match="w2"):
        await service.compare_snapshot(taken["w2"].id)


async def test_files_stay_on_their_worker(scene: Scene) -> None:
    service = scene.coordinator
    sessions = await on_each(scene)
    here = await service.take_snapshot(sessions["w1"].id, TAKE)
    there = await service.take_snapshot(sessions["w2"].id, TAKE)
    with pytest.raises(Unsupported, match="Create a session with the snapshot instead"):
        await service.restore_snapshot(sessions["w1"].id, RestoreSnapshot(there.id))
    with pytest.raises(Unsupported, match="different workers"):
        await service.compare_snapshot(here.id, to=there.id)
    assert (await service.get_session(sessions["w1"].id)).generation == 1


async def test_what_does_not_exist(scene: Scene) -> None:
    service = scene.coordinator
    unknown = [new_snapshot_id(worker_tag(name)) for name in ("w1", "w2", "never-there")]
    for snapshot_id in (*unknown, "nonsense"):
        await service.delete_snapshot(snapshot_id)
        with pytest.raises(NotFound):
            await service.compare_snapshot(snapshot_id)
    for snapshot_id in unknown:
        with pytest.raises(NotFound):
            await service.create_session(CreateSession(snapshot=snapshot_id))
        with pytest.raises(NotFound):
            await service.restore_snapshot(new_session_id(), RestoreSnapshot(snapshot_id))
    assert await service.list_snapshots(session_id=new_session_id()) == SnapshotPage(())
    with pytest.raises(InvalidRequest):
        await service.list_snapshots(after="what")
    with pytest.raises(InvalidRequest):
        await service.list_snapshots(limit=0)


async def test_an_unsettled_directory_does_not_deny_a_snapshot(scene: Scene) -> None:
    """The worker that has it may not have joined again yet."""
    session = (await on_each(scene))["w1"]
    snapshot = await scene.coordinator.take_snapshot(session.id, TAKE)
    scene.directory.empty()
    other = scene.another()
    for call in (
        other.compare_snapshot(snapshot.id),
        other.delete_snapshot(snapshot.id),
        other.create_session(CreateSession(snapshot=snapshot.id)),
    ):
        with pytest.raises(Unavailable) as unsettled:
            await call
        assert unsettled.value.details["reason"] == "unsettled"


async def test_a_worker_that_has_just_joined_is_known(scene: Scene) -> None:
    """The list of workers is used for a while, but never to say that a snapshot does not exist."""
    assert await scene.coordinator._parts.asked.tagged(worker_tag("w3")) is None
    await scene.join("w3", nobody())
    found = await scene.coordinator._parts.asked.tagged(worker_tag("w3"))
    assert found is not None
    assert found.id == "w3"


async def test_no_other_tenant_has_a_part_in_it(scene: Scene) -> None:
    session = (await on_each(scene))["w2"]
    snapshot = await scene.coordinator.take_snapshot(session.id, TAKE)
    stranger = scene.coordinator.acting_for(Principal("stranger", ALL_SCOPES))
    own = (await stranger.create_session(CreateSession())).session
    assert await stranger.list_snapshots() == SnapshotPage(())
    assert await stranger.list_snapshots(session_id=session.id) == SnapshotPage(())
    await stranger.delete_snapshot(snapshot.id)
    calls = [
        stranger.compare_snapshot(snapshot.id),
        stranger.create_session(CreateSession(snapshot=snapshot.id)),
        stranger.take_snapshot(session.id, TAKE),
        stranger.get_workspace(session.id),
        stranger.hibernate_session(session.id),
        stranger.restore_snapshot(session.id, RestoreSnapshot(snapshot.id)),
    ]
    for call in calls:
        with pytest.raises(NotFound):
            await call
    # On another worker than the snapshot, the answer is about its id alone, and so the same for any id.
    with pytest.raises((NotFound, Unsupported)):
        await stranger.restore_snapshot(own.id, RestoreSnapshot(snapshot.id))
    assert [each.id for each in await all_pages(scene.coordinator, 10)] == [snapshot.id]
    reader = scene.coordinator.acting_for(Principal("default", frozenset({Scope.SESSIONS_READ})))
    assert len((await reader.list_snapshots()).snapshots) == 1
    for call in (reader.delete_snapshot(snapshot.id), reader.compare_snapshot(snapshot.id)):
        with pytest.raises(Forbidden):
            await call


async def test_hibernation(scene: Scene) -> None:
    service = scene.coordinator
    for worker, session in (await on_each(scene)).items():
        await written(service, session, "kept")
        asleep = await service.hibernate_session(session.id)
        assert asleep.state is SessionState.HIBERNATED
        await scene.workers[worker].record(asleep)
        listed = {each.id: each for each in (await service.list_sessions()).sessions}
        assert listed[session.id].state is SessionState.HIBERNATED
        assert scene.coordinator.access(OWNER, asleep) is None, "it has no sandbox to go to"
        assert await shown(service, session) == "kept"
        assert (await service.get_session(session.id)).generation == 2
