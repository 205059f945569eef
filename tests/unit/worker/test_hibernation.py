"""Sessions that hibernate on a scripted engine: when, what stays, how they wake, and when they end."""

from __future__ import annotations

import asyncio

import pytest
from tests.owned import OwnWorker
from tests.unit.worker.conftest import Scene
from tests.unit.worker.scripted import Engine
from tests.unit.worker.test_workspaces import created, files

from sandlot.domain.errors import SandboxLost, SessionEnded, Unavailable
from sandlot.domain.execution import ExecRequest
from sandlot.domain.history.query import EventQuery
from sandlot.domain.session import KEPT_FILES, CreateSession, OnIdle, Session, SessionState
from sandlot.domain.workspaces.snapshots import RestoreSnapshot, TakeSnapshot
from sandlot.testing.eventually import eventually
from sandlot.worker.workspaces.options import WorkspaceOptions

SOON = 0.05


@pytest.fixture(params=[True, False], ids=["swaps", "volumes"])
def any_store(request: pytest.FixtureRequest, engine: Engine) -> bool:
    engine.store.use(swaps=request.param)
    return bool(request.param)


async def start(scene: Scene, **options: object) -> OwnWorker:
    return await scene.start(workspaces=WorkspaceOptions(**options))  # type: ignore[arg-type]


async def hibernated(worker: OwnWorker, session: Session) -> Session:
    async def hibernates() -> bool:
        return (await worker.get_session(session.id)).state is SessionState.HIBERNATED

    await eventually(hibernates)
    return await worker.get_session(session.id)


async def hello(worker: OwnWorker, session: Session) -> Session:
    assert (await worker.execute(session.id, ExecRequest(command="hello"))).stdout == b"hello"
    return await worker.get_session(session.id)


@pytest.mark.usefixtures("any_store")
async def test_an_idle_session_hibernates_and_wakes_with_its_files(scene: Scene, engine: Engine) -> None:
    worker = await start(scene)
    session = await created(worker, idle_timeout_s=SOON, on_idle=OnIdle.HIBERNATE, env={"A": "1"})
    files(engine, session)["a"] = "1"
    asleep = await hibernated(worker, session)
    await eventually(lambda: not engine.store.attached)
    assert asleep.sandbox_id is None
    assert asleep.generation == 1
    assert asleep.loss is not None
    assert "idle" in asleep.loss.reason
    assert KEPT_FILES in asleep.loss.kept
    assert asleep.expires_at == asleep.last_active_at + asleep.hibernation_s
    result = await worker.execute(session.id, ExecRequest(command="hello"))
    assert result.generation == 2
    woken = await worker.get_session(session.id)
    if woken.state is SessionState.ACTIVE:  # it may hibernate again any moment
        assert files(engine, woken) == {"a": "1"}
    assert woken.loss is not None


async def test_the_default_depends_on_the_store(scene: Scene, engine: Engine) -> None:
    worker = await start(scene)
    assert (await created(worker)).on_idle is OnIdle.HIBERNATE
    assert (await created(worker, on_idle=OnIdle.END)).on_idle is OnIdle.END
    await worker.close()
    engine.store.use(swaps=False)
    worker = await start(scene)
    assert (await created(worker)).on_idle is OnIdle.END
    await worker.close()
    worker = await start(scene, on_idle=OnIdle.HIBERNATE)
    assert (await created(worker)).on_idle is OnIdle.HIBERNATE


@pytest.mark.usefixtures("any_store")
async def test_on_request_it_hibernates_at_once(scene: Scene, engine: Engine) -> None:
    worker = await start(scene)
    session = await created(worker)
    files(engine, session)["a"] = "1"
    waiting = asyncio.ensure_future(worker.execute(session.id, ExecRequest(command="wait", exec_id="long")))
    await eventually(lambda: bool(engine.sandboxes[session.sandbox_id or ""].execs))
    asleep = await worker.hibernate_session(session.id)
    assert asleep.state is SessionState.HIBERNATED
    assert session.sandbox_id not in engine.sandboxes
    assert (await worker.hibernate_session(session.id)).state is SessionState.HIBERNATED
    with pytest.raises(SandboxLost, match="hibernated on request") as caught:
        await waiting
    assert caught.value.may_have_executed
    assert files(engine, await hello(worker, session)) == {"a": "1"}


async def test_many_calls_wake_it_once(scene: Scene, engine: Engine) -> None:
    worker = await start(scene)
    session = await created(worker)
    await worker.hibernate_session(session.id)
    made = len(engine.made)
    results = await asyncio.gather(
        *(
            worker.execute(session.id, ExecRequest(command="hello", exec_id=f"e{number}"))
            for number in range(20)
        )
    )
    assert {result.generation for result in results} == {2}
    assert len(engine.made) == made + 1


async def test_a_create_for_its_thread_wakes_it(scene: Scene, engine: Engine) -> None:
    worker = await start(scene)
    session = await created(worker, thread="t")
    await worker.hibernate_session(session.id)
    opened = await worker.create_session(CreateSession(thread="t"))
    assert (opened.created, opened.session.id, opened.session.generation) == (False, session.id, 2)
    assert opened.session.state is SessionState.ACTIVE


async def test_its_lifetime_begins_again_when_it_wakes(scene: Scene) -> None:
    worker = await start(scene)
    session = await created(worker, lifetime_s=SOON)
    await hibernated(worker, session)
    result = await worker.execute(session.id, ExecRequest(command="hello"))
    assert result.generation > 1
    woken = await worker.get_session(session.id)
    assert woken.woken_at is not None
    assert woken.created_at == session.created_at


@pytest.mark.usefixtures("any_store")
async def test_a_restarted_worker_wakes_it(scene: Scene, engine: Engine) -> None:
    worker = await start(scene)
    session = await created(worker, env={"A": "1"})
    files(engine, session)["a"] = "1"
    await worker.hibernate_session(session.id)
    asleep = await worker.get_session(session.id)
    await worker.close()
    worker = await start(scene)
    assert await worker.get_session(session.id) == asleep, "a restart does not keep it for longer"
    assert files(engine, await hello(worker, session)) == {"a": "1"}


@pytest.mark.usefixtures("any_store")
async def test_its_files_go_when_it_is_deleted_or_forgotten(scene: Scene, engine: Engine) -> None:
    worker = await start(scene, hibernation_s=SOON)
    deleted, forgotten = await created(worker), await created(worker)
    await worker.hibernate_session(deleted.id)
    await worker.delete_session(deleted.id)
    await worker.hibernate_session(forgotten.id)

    async def has_ended() -> bool:
        try:
            await worker.get_session(forgotten.id)
        except SessionEnded:
            return True
        return False

    await eventually(has_ended)
    await eventually(lambda: not engine.store.workspaces)


async def test_snapshots_need_no_sandbox(scene: Scene, engine: Engine) -> None:
    worker = await start(scene)
    session = await created(worker)
    files(engine, session)["a"] = "1"
    await worker.hibernate_session(session.id)
    snapshot = await worker.take_snapshot(session.id, TakeSnapshot())
    assert files(engine, await created(worker, snapshot=snapshot.id)) == {"a": "1"}
    restored = await worker.restore_snapshot(session.id, RestoreSnapshot(snapshot.id))
    assert files(engine, restored.session) == {"a": "1"}


async def test_it_needs_no_room_until_it_wakes(scene: Scene) -> None:
    worker = await scene.start(max_sessions=1, workspaces=WorkspaceOptions())
    session = await created(worker)
    await worker.hibernate_session(session.id)
    other = await created(worker)
    with pytest.raises(Unavailable):
        await created(worker)
    with pytest.raises(Unavailable, match="limit of 1 session"):
        await hello(worker, session)
    await worker.delete_session(other.id)
    await hello(worker, session)


async def test_above_the_limit_idle_sessions_end(scene: Scene) -> None:
    worker = await start(scene, max_hibernated=1)
    kept = await created(worker)
    await worker.hibernate_session(kept.id)
    session = await created(worker, idle_timeout_s=SOON)

    async def has_ended() -> bool:
        try:
            await worker.get_session(session.id)
        except SessionEnded:
            return True
        return False

    await eventually(has_ended)


async def test_the_history_says_so(scene: Scene) -> None:
    worker = await start(scene)
    session = await created(worker)
    await worker.hibernate_session(session.id)

    async def told() -> bool:
        page = await worker.list_events(EventQuery(session_id=session.id))
        return "session.hibernated" in [event.kind for event in page.events]

    await eventually(told)


async def test_a_lost_session_cannot_hibernate_and_keeps_its_files(scene: Scene, engine: Engine) -> None:
    worker = await start(scene)
    session = await created(worker, idle_timeout_s=SOON)
    files(engine, session)["a"] = "1"
    engine.remove(session.sandbox_id or "")

    async def is_lost() -> bool:
        return (await worker.get_session(session.id)).state is not SessionState.ACTIVE

    await eventually(is_lost)
    lost = await worker.get_session(session.id)
    if lost.state is SessionState.LOST:
        with pytest.raises(SandboxLost):
            await worker.hibernate_session(session.id)
        assert lost.expires_at == lost.last_active_at + lost.hibernation_s
    assert files(engine, await worker.recreate_session(session.id)) == {"a": "1"}
