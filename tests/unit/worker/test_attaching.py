"""A session's files reach its sandbox while the session is recorded and bound: what happens if one of them fails."""

from __future__ import annotations

import asyncio

import pytest
from tests.owned import OwnWorker
from tests.unit.worker.conftest import Scene, full_disk
from tests.unit.worker.scripted import Engine
from tests.unit.worker.test_workspaces import created, files

from sandlot.domain.errors import EngineProblem, SandlotError
from sandlot.domain.execution import ExecRequest
from sandlot.domain.ids import first_workspace_of
from sandlot.domain.session import Session
from sandlot.domain.workspaces.snapshots import TakeSnapshot
from sandlot.testing.eventually import eventually


async def with_snapshot(worker: OwnWorker, engine: Engine) -> tuple[Session, str]:
    session = await created(worker)
    files(engine, session)["a"] = "1"
    return session, (await worker.take_snapshot(session.id, TakeSnapshot())).id


class HeldAttach:
    """Attaching waits until it is let go, and then fails if it was told to."""

    def __init__(self, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
        self.began, self.go_on = asyncio.Event(), asyncio.Event()
        self.error: SandlotError | None = None
        self._attach = engine.store.attach
        monkeypatch.setattr(engine.store, "attach", self.attach)

    async def attach(self, sandbox_id: str, workspace_id: str) -> None:
        self.began.set()
        await self.go_on.wait()
        if self.error is not None:
            raise self.error
        await self._attach(sandbox_id, workspace_id)


@pytest.fixture
def held(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> HeldAttach:
    return HeldAttach(engine, monkeypatch)


async def nothing_but(engine: Engine, worker: OwnWorker, session: Session) -> None:
    """No workspace stays but this session's and those of warm sandboxes, and no other session."""
    assert session.workspace is not None
    wanted = session.workspace.id

    def rest() -> set[str]:
        return (
            set(engine.store.workspaces) - {wanted} - {first_workspace_of(name) for name in engine.sandboxes}
        )

    await eventually(lambda: not rest(), what=lambda: f"left over: {rest()}")
    assert [found.id for found in (await worker.list_sessions()).sessions] == [session.id]


async def test_no_answer_before_the_files_are_there(scene: Scene, engine: Engine, held: HeldAttach) -> None:
    worker = await scene.start()
    _, snapshot = await with_snapshot(worker, engine)
    creating = asyncio.create_task(created(worker, snapshot=snapshot))
    await held.began.wait()
    await eventually(lambda: sum(sandbox.env is not None for sandbox in engine.sandboxes.values()) == 2)
    assert not creating.done()
    held.go_on.set()
    assert files(engine, await creating) == {"a": "1"}


async def test_files_that_cannot_be_attached(scene: Scene, engine: Engine, held: HeldAttach) -> None:
    worker = await scene.start()
    session, snapshot = await with_snapshot(worker, engine)
    held.error = EngineProblem("Cannot attach.", retryable=True)
    held.go_on.set()
    with pytest.raises(EngineProblem, match="Cannot attach"):
        await created(worker, snapshot=snapshot)
    await nothing_but(engine, worker, session)


async def test_a_cancelled_create(scene: Scene, engine: Engine, held: HeldAttach) -> None:
    worker = await scene.start()
    session, snapshot = await with_snapshot(worker, engine)
    creating = asyncio.create_task(created(worker, snapshot=snapshot))
    await held.began.wait()
    creating.cancel()
    held.go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await creating
    await nothing_but(engine, worker, session)


async def test_a_session_that_cannot_be_recorded(scene: Scene, engine: Engine) -> None:
    worker = await scene.start()
    session, snapshot = await with_snapshot(worker, engine)

    async def create_many() -> None:
        for _ in range(50):  # until the file of the records has to grow
            await created(worker, snapshot=snapshot, metadata={"large": "x" * 2000})

    with full_disk(), pytest.raises(SandlotError):
        await create_many()
    for other in (await worker.list_sessions()).sessions:
        if other.id != session.id:
            await worker.delete_session(other.id)
    await nothing_but(engine, worker, session)


async def test_a_worker_that_died_in_between_attaches_later(scene: Scene, engine: Engine) -> None:
    worker = await scene.start()
    _, snapshot = await with_snapshot(worker, engine)
    fork = await created(worker, snapshot=snapshot)
    assert fork.sandbox_id is not None
    await worker.close()
    engine.store.attached[fork.sandbox_id] = first_workspace_of(fork.sandbox_id)  # as before the attach
    worker = await scene.start()
    await worker.execute(fork.id, ExecRequest(command="hello"))
    assert files(engine, fork) == {"a": "1"}
