"""Sessions and their files on a scripted engine: loss, recreate, restore, snapshots, steps, leftovers."""

from __future__ import annotations

import asyncio

import pytest
from tests.owned import OwnWorker
from tests.unit.worker.conftest import Scene
from tests.unit.worker.scripted import Engine

from sandlot.domain.callers.principal import Principal
from sandlot.domain.errors import Conflict, NotFound, SandboxLost, Unsupported
from sandlot.domain.execution import ExecRequest
from sandlot.domain.service import SandboxService
from sandlot.domain.session import KEPT_FILES, CreateSession, Session, SessionState
from sandlot.domain.workspaces.snapshots import RestoreSnapshot, TakeSnapshot
from sandlot.testing.eventually import eventually
from sandlot.worker.workspaces.options import WorkspaceOptions


def files(engine: Engine, session: Session) -> dict[str, str]:
    """The files that the session's sandbox sees."""
    assert session.sandbox_id is not None
    assert session.workspace is not None
    assert engine.store.attached[session.sandbox_id] == session.workspace.id
    return engine.store.workspaces[session.workspace.id]


async def created(service: SandboxService, **options: object) -> Session:
    return (await service.create_session(CreateSession(**options))).session  # type: ignore[arg-type]


async def lost_of(worker: OwnWorker, session: Session) -> Session:
    async def is_lost() -> bool:
        return (await worker.get_session(session.id)).state is SessionState.LOST

    await eventually(is_lost)
    return await worker.get_session(session.id)


@pytest.fixture(params=[True, False], ids=["swaps", "volumes"])
def any_store(request: pytest.FixtureRequest, engine: Engine) -> bool:
    engine.store.use(swaps=request.param)
    return bool(request.param)


@pytest.mark.usefixtures("any_store")
async def test_recreate_keeps_the_files(scene: Scene, engine: Engine) -> None:
    worker = await scene.start()
    session = await created(worker)
    files(engine, session)["a"] = "1"
    engine.remove(session.sandbox_id or "")
    lost = await lost_of(worker, session)
    assert lost.loss is not None
    assert KEPT_FILES in lost.loss.kept
    again = await worker.recreate_session(session.id)
    assert files(engine, again) == {"a": "1"}
    assert again.generation == 2
    assert again.workspace == session.workspace
    # and once more, with the sandbox that was made for the files
    engine.remove(again.sandbox_id or "")
    await lost_of(worker, session)
    assert files(engine, await worker.recreate_session(session.id)) == {"a": "1"}


@pytest.mark.usefixtures("any_store")
async def test_a_restarted_worker_gives_the_files_back(scene: Scene, engine: Engine) -> None:
    worker = await scene.start()
    session = await created(worker)
    files(engine, session)["a"] = "1"
    await worker.close()
    engine.remove(session.sandbox_id or "")
    worker = await scene.start()
    lost = await worker.get_session(session.id)
    assert lost.state is SessionState.LOST
    assert files(engine, await worker.recreate_session(session.id)) == {"a": "1"}


@pytest.mark.usefixtures("any_store")
async def test_the_files_go_with_the_session(scene: Scene, engine: Engine) -> None:
    worker = await scene.start()
    running, lost = await created(worker), await created(worker)
    engine.remove(lost.sandbox_id or "")
    await lost_of(worker, lost)
    recreated = await created(worker)
    engine.remove(recreated.sandbox_id or "")
    await lost_of(worker, recreated)
    await worker.recreate_session(recreated.id)
    for session in (running, lost, recreated):
        await worker.delete_session(session.id)
    assert engine.store.workspaces == {}


@pytest.mark.usefixtures("any_store")
async def test_files_that_are_gone_are_reported(scene: Scene, engine: Engine) -> None:
    worker = await scene.start()
    session = await created(worker)
    engine.remove(session.sandbox_id or "")
    await lost_of(worker, session)
    await eventually(lambda: not engine.store.attached)
    engine.store.workspaces.clear()
    again = await worker.recreate_session(session.id)
    assert files(engine, again) == {}
    assert again.loss is not None
    assert KEPT_FILES in again.loss.lost
    assert KEPT_FILES not in again.loss.kept


async def test_restore_gives_the_files_of_a_snapshot(scene: Scene, engine: Engine) -> None:
    worker = await scene.start()
    session = await created(worker)
    files(engine, session)["a"] = "1"
    snapshot = await worker.take_snapshot(session.id, TakeSnapshot("first"))
    files(engine, session).update(a="2", b="3")
    difference = await worker.compare_snapshot(snapshot.id)
    assert (difference.added, difference.changed, difference.removed) == (("b",), ("a",), ())
    await worker.start_exec(session.id, ExecRequest(command="wait", exec_id="long"))
    restored = await worker.restore_snapshot(session.id, RestoreSnapshot(snapshot.id))
    assert restored.replaced
    assert restored.session.generation == 2
    assert "running commands" in restored.lost
    assert files(engine, restored.session) == {"a": "1"}
    assert list(engine.store.workspaces) == [
        restored.session.workspace.id if restored.session.workspace else ""
    ]
    assert session.sandbox_id not in engine.sandboxes
    with pytest.raises((SandboxLost, NotFound)):
        await worker.attach_exec(session.id, "long")
    assert (await worker.execute(session.id, ExecRequest(command="hello"))).stdout == b"hello"


async def test_a_create_from_a_snapshot_outlives_its_session(scene: Scene, engine: Engine) -> None:
    worker = await scene.start()
    session = await created(worker)
    files(engine, session)["a"] = "1"
    snapshot = await worker.take_snapshot(session.id, TakeSnapshot())
    await worker.delete_session(session.id)
    fork = await created(worker, snapshot=snapshot.id)
    assert files(engine, fork) == {"a": "1"}
    assert fork.workspace is not None
    assert fork.workspace.snapshot == snapshot.id
    await worker.delete_snapshot(snapshot.id)
    await worker.delete_snapshot(snapshot.id)
    assert files(engine, fork) == {"a": "1"}
    with pytest.raises(NotFound):
        await created(worker, snapshot=snapshot.id)


async def test_no_other_tenant_gets_a_snapshot(scene: Scene, engine: Engine) -> None:
    worker = await scene.start()
    session = await created(worker)
    snapshot = await worker.take_snapshot(session.id, TakeSnapshot())
    other = worker.acting_for(Principal("other"))
    mine = await created(other)
    for call in (
        created(other, snapshot=snapshot.id),
        other.restore_snapshot(mine.id, RestoreSnapshot(snapshot.id)),
        other.compare_snapshot(snapshot.id),
        other.take_snapshot(session.id, TakeSnapshot()),
    ):
        with pytest.raises(NotFound):
            await call
    await other.delete_snapshot(snapshot.id)
    assert [found.id for found in (await worker.list_snapshots()).snapshots] == [snapshot.id]
    assert (await other.list_snapshots()).snapshots == ()


async def test_volumes_say_what_they_cannot_do(scene: Scene, engine: Engine) -> None:
    engine.store.use(swaps=False)
    worker = await scene.start()
    session = await created(worker)
    assert (await worker.get_workspace(session.id)).note
    with pytest.raises(Unsupported, match="Volumes can do less"):
        await worker.take_snapshot(session.id, TakeSnapshot())
    with pytest.raises(Unsupported):
        await created(worker, snapshot="snp_" + "0" * 32)


async def begun(worker: OwnWorker, session: Session, snapshot: str | None, step: str) -> bool:
    """Whether the step got a new sandbox."""
    restored = await worker.restore_snapshot(session.id, RestoreSnapshot(snapshot, step))
    return restored.replaced


async def test_steps_restore_only_what_they_must(scene: Scene, engine: Engine) -> None:
    worker = await scene.start()
    session = await created(worker)

    async def now() -> dict[str, str]:
        return files(engine, await worker.get_session(session.id))

    async def ended(step: str) -> str:
        return (await worker.take_snapshot(session.id, TakeSnapshot(step=step))).id

    assert not await begun(worker, session, None, "one")
    (await now())["a"] = "1"
    first = await ended("one")
    assert not await begun(worker, session, first, "two")
    assert await ended("two") == first, "nothing changed"
    assert not await begun(worker, session, first, "three")
    (await now())["a"] = "3"
    assert not await begun(worker, session, first, "three"), "the same step again"
    assert await begun(worker, session, first, "four"), "what a broken-off step did is undone"
    assert await now() == {"a": "1"}
    (await now())["a"] = "4"
    fourth = await ended("four")
    assert await begun(worker, session, None, "five"), "back to the beginning"
    assert await now() == {}
    assert await begun(worker, session, fourth, "six")
    assert await now() == {"a": "4"}
    assert await ended("six") == fourth
    await worker.close()
    worker = await scene.start()
    assert not await begun(worker, session, fourth, "seven"), "a new process knows the line"
    # a snapshot of the caller's own moves no line
    (await now())["a"] = "7"
    own = await worker.take_snapshot(session.id, TakeSnapshot("mine"))
    seventh = await ended("seven")
    assert seventh not in (own.id, fourth)


async def test_old_and_surplus_snapshots_go(scene: Scene, engine: Engine) -> None:
    options = WorkspaceOptions(max_snapshots=2, max_age_s=3600.0)
    worker = await scene.start(workspaces=options, orphan_grace_s=0.05)
    session = await created(worker)
    named = await worker.take_snapshot(session.id, TakeSnapshot("keep me"))
    taken = [(await worker.take_snapshot(session.id, TakeSnapshot())).id for _ in range(4)]
    kept = [snapshot.id for snapshot in (await worker.list_snapshots(session_id=session.id)).snapshots]
    assert kept == [named.id, *taken[-2:]]
    assert set(engine.store.snapshots) == set(kept)


async def test_named_snapshots_are_limited(scene: Scene) -> None:
    worker = await scene.start(workspaces=WorkspaceOptions(max_snapshots=2))
    session = await created(worker)
    kept = [await worker.take_snapshot(session.id, TakeSnapshot(name)) for name in "ab"]
    with pytest.raises(Conflict, match="2 named snapshots"):
        await worker.take_snapshot(session.id, TakeSnapshot("c"))
    await worker.take_snapshot(session.id, TakeSnapshot())
    await worker.delete_snapshot(kept[0].id)
    await worker.take_snapshot(session.id, TakeSnapshot("c"))


async def test_what_nobody_has_is_swept_away(scene: Scene, engine: Engine) -> None:
    engine.store.workspaces["wsp_" + "1" * 32] = {}
    engine.store.snapshots["snp_" + "1" * 32] = {}
    worker = await scene.start(orphan_grace_s=0.05)
    session = await created(worker)
    snapshot = await worker.take_snapshot(session.id, TakeSnapshot())
    wanted = ({session.workspace.id if session.workspace else ""}, {snapshot.id})
    await eventually(lambda: (set(engine.store.workspaces), set(engine.store.snapshots)) == wanted)


async def test_pages_of_snapshots(scene: Scene) -> None:
    worker = await scene.start()
    session, other = await created(worker), await created(worker)
    taken = [(await worker.take_snapshot(session.id, TakeSnapshot())).id for _ in range(3)]
    taken.append((await worker.take_snapshot(other.id, TakeSnapshot())).id)
    page = await worker.list_snapshots(limit=3)
    rest = await worker.list_snapshots(limit=3, after=page.next)
    assert [found.id for found in (*page.snapshots, *rest.snapshots)] == taken
    assert rest.next is None
    of_session = await worker.list_snapshots(session_id=session.id)
    assert [found.id for found in of_session.snapshots] == taken[:3]


@pytest.mark.usefixtures("any_store")
async def test_a_delete_right_after_a_loss_removes_the_sandbox_first(scene: Scene, engine: Engine) -> None:
    worker = await scene.start()
    session = await created(worker)
    engine.destroying.hold()
    engine.sandboxes[session.sandbox_id or ""].die("it ended")
    await lost_of(worker, session)
    deleting = asyncio.ensure_future(worker.delete_session(session.id))
    await eventually(lambda: engine.destroying.at_once > 0)
    engine.destroying.release()
    await deleting
    assert engine.store.workspaces == {}
