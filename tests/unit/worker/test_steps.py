"""Steps of a worker's sessions: calls of one step at the same time, and steps that overtake each other."""

from __future__ import annotations

import asyncio

import pytest
from tests.owned import OwnWorker
from tests.unit.worker.conftest import Engine, Scene

from sandlot.domain.errors import Conflict
from sandlot.domain.session import CreateSession
from sandlot.domain.workspaces.snapshots import Restored, RestoreSnapshot, Snapshot, TakeSnapshot


async def begin(worker: OwnWorker, session_id: str, snapshot: str | None, step: str) -> Restored:
    return await worker.restore_snapshot(session_id, RestoreSnapshot(snapshot, step))


async def end(worker: OwnWorker, session_id: str, step: str) -> Snapshot:
    return await worker.take_snapshot(session_id, TakeSnapshot(step=step))


async def files(worker: OwnWorker, engine: Engine, session_id: str) -> dict[str, str]:
    workspace = (await worker.get_session(session_id)).workspace
    assert workspace is not None
    return engine.store.workspaces[workspace.id]


async def test_calls_of_one_step_restore_once(scene: Scene, engine: Engine) -> None:
    worker = await scene.start()
    session = (await worker.create_session(CreateSession())).session
    await begin(worker, session.id, None, "one")
    (await files(worker, engine, session.id))["a"] = "1"
    first = await end(worker, session.id, "one")
    await begin(worker, session.id, first.id, "two")
    (await files(worker, engine, session.id))["a"] = "2"
    await end(worker, session.id, "two")
    begun = await asyncio.gather(*(begin(worker, session.id, first.id, "back") for _ in range(5)))
    assert sorted(restored.replaced for restored in begun) == [False] * 4 + [True]
    assert (await worker.get_session(session.id)).generation == 2
    assert await files(worker, engine, session.id) == {"a": "1"}


async def test_parts_of_a_step_build_on_each_other_across_a_restart(scene: Scene, engine: Engine) -> None:
    worker = await scene.start()
    session = (await worker.create_session(CreateSession())).session
    for part in ("a", "b", "c"):
        assert not (await begin(worker, session.id, None, "one")).replaced
        (await files(worker, engine, session.id))[part] = ""
        last = await end(worker, session.id, "one")
        await worker.close()
        worker = await scene.start()
    assert not (await begin(worker, session.id, last.id, "two")).replaced
    assert await files(worker, engine, session.id) == {"a": "", "b": "", "c": ""}


async def test_an_overtaken_step_keeps_nothing(scene: Scene, engine: Engine) -> None:
    worker = await scene.start()
    session = (await worker.create_session(CreateSession())).session
    await begin(worker, session.id, None, "one")
    (await files(worker, engine, session.id))["a"] = "half done"
    assert (await begin(worker, session.id, None, "two")).replaced
    (await files(worker, engine, session.id))["b"] = "of two"
    with pytest.raises(Conflict, match="no longer those of this step"):
        await end(worker, session.id, "one")
    second = await end(worker, session.id, "two")
    assert engine.store.snapshots[second.id] == {"b": "of two"}
    own = await worker.take_snapshot(session.id, TakeSnapshot())
    await worker.restore_snapshot(session.id, RestoreSnapshot(own.id))
    with pytest.raises(Conflict):
        await end(worker, session.id, "two")
