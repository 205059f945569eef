"""Snapshots from object storage on a scripted engine: what comes back, and to whom."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.owned import OwnWorker
from tests.unit.worker.conftest import Scene
from tests.unit.worker.exporting import (
    SOON,
    TENANT,
    exported_one,
    lose_everything,
    make_fast,
    start,
    storage_in,
    until_marked,
    until_saved,
)
from tests.unit.worker.scripted import Engine
from tests.unit.worker.test_registrar import Clerk
from tests.unit.worker.test_workspaces import created, files

from sandlot.domain.callers.principal import OWNER, Principal
from sandlot.domain.errors import NotFound, SessionEnded, StorageProblem
from sandlot.domain.session import KEPT_FILES, Assignment, CreateSession, OnIdle, Session, SessionState
from sandlot.domain.session_states import mark_worker_lost
from sandlot.domain.workspaces.exports import Cause
from sandlot.domain.workspaces.snapshots import TakeSnapshot
from sandlot.testing.eventually import eventually
from sandlot.worker.workspaces.objects.storage import ObjectStorage


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "objects"


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    make_fast(monkeypatch)


@pytest.fixture
async def saved(place: Path) -> AsyncIterator[ObjectStorage]:
    """The storage as nobody's: for looking."""
    storage = storage_in(place)
    await storage.open()
    yield storage
    await storage.close()


# --- what comes back --------------------------------------------------------------------------


async def test_a_snapshot_is_fetched_by_its_id(
    scene: Scene, engine: Engine, place: Path, saved: ObjectStorage
) -> None:
    worker = await start(scene, place)
    session = await created(worker)
    files(engine, session)["a"] = "1"
    snapshot = await worker.take_snapshot(session.id, TakeSnapshot("first", {"by": "me"}))
    await until_marked(saved, session, 1)
    await lose_everything(scene, engine, worker)
    worker = await start(scene, place)
    stranger = worker.acting_for(Principal("another"))
    with pytest.raises(NotFound):
        await created(stranger, snapshot=snapshot.id)
    forks = await asyncio.gather(*(created(worker, snapshot=snapshot.id) for _ in range(3)))
    for fork in forks:
        assert files(engine, fork) == {"a": "1"}
    (found,) = (await worker.list_snapshots()).snapshots
    assert replace(found, unique_bytes=None) == snapshot
    await worker.delete_snapshot(snapshot.id)
    with pytest.raises(NotFound):
        await created(worker, snapshot=snapshot.id)
    await until_saved(saved)


async def test_a_damaged_export_leaves_nothing(
    scene: Scene, engine: Engine, place: Path, saved: ObjectStorage
) -> None:
    worker = await start(scene, place)
    session = await created(worker)
    files(engine, session)["a"] = "1" * 1000
    snapshot = await worker.take_snapshot(session.id, TakeSnapshot("first"))
    await until_marked(saved, session, 1)
    await lose_everything(scene, engine, worker)
    for chunk in place.rglob("chunks/*/*"):
        content = bytearray(chunk.read_bytes())
        content[-1] ^= 1
        chunk.write_bytes(content)
    worker = await start(scene, place)
    with pytest.raises(StorageProblem, match="damaged"):
        await created(worker, snapshot=snapshot.id)
    assert engine.store.snapshots == {}
    assert not (await worker.list_snapshots()).snapshots


async def taken_over(worker: OwnWorker, session: Session) -> Session:
    """As a coordinator asks for it."""
    lost = mark_worker_lost(session, time.time(), "worker0")
    request = CreateSession(environment="base", thread=session.thread, recreate_lost=True)
    return (await worker.create_assigned(OWNER, request, Assignment(lost=lost))).session


async def test_a_session_goes_on_at_another_worker(
    scene: Scene, engine: Engine, place: Path, saved: ObjectStorage
) -> None:
    worker = await start(scene, place, snapshot_every_s=SOON)
    session = await created(worker, thread="t")
    other = await created(worker)
    files(engine, session)["a"] = "1"
    await exported_one(worker, saved, session, Cause.INTERVAL)
    mark = await until_marked(saved, session, 1)
    seen = await worker.get_session(session.id)
    await lose_everything(scene, engine, worker)
    for old in await saved.marks(TENANT, other.id):
        await saved.unmark(TENANT, other.id, old)
    worker = await start(scene, place, name="another", clerk=Clerk())
    again = await taken_over(worker, seen)
    assert (again.id, again.generation, again.state) == (session.id, 2, SessionState.ACTIVE)
    assert files(engine, again) == {"a": "1"}
    assert again.loss is not None
    when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(mark.created_at))
    assert f"{KEPT_FILES} as of {when}" in again.loss.kept
    assert f"changes in /workspace since {when}" in again.loss.lost
    assert KEPT_FILES not in again.loss.lost
    # What it took over is its own export now, and is found for the next loss.
    newest = await until_marked(saved, session, 2)
    assert newest.created_at == mark.created_at
    without = await taken_over(worker, other)
    assert files(engine, without) == {}
    assert without.loss is not None
    assert KEPT_FILES in without.loss.lost
    await lose_everything(scene, engine, worker)
    worker = await start(scene, place, name="another", clerk=Clerk())
    third = await taken_over(worker, again)
    assert (third.generation, files(engine, third)) == (3, {"a": "1"})


async def test_an_old_worker_does_not_win(
    scene: Scene, engine: Engine, place: Path, saved: ObjectStorage
) -> None:
    worker = await start(scene, place)
    session = await created(worker)
    files(engine, session)["a"] = "old"
    old = await worker.take_snapshot(session.id, TakeSnapshot("old"))
    mark = await until_marked(saved, session, 1)
    files(engine, session)["a"] = "new"
    woken = await hibernated_and_woken(worker, session)
    new = await worker.take_snapshot(session.id, TakeSnapshot("new"))
    await until_marked(saved, session, 2)
    # As if the worker of the first generation were still at work.
    await saved.mark(TENANT, session.id, replace(mark, created_at=time.time() + 1000))
    await lose_everything(scene, engine, worker)
    assert new.id != old.id
    worker = await start(scene, place, name="another", clerk=Clerk())
    assert files(engine, await taken_over(worker, woken)) == {"a": "new"}


async def hibernated_and_woken(worker: OwnWorker, session: Session) -> Session:
    await worker.hibernate_session(session.id)
    return await worker.recreate_session(session.id)


@pytest.mark.parametrize("on_idle", list(OnIdle))
async def test_a_hibernated_session_has_not_ended(
    scene: Scene, engine: Engine, place: Path, saved: ObjectStorage, on_idle: OnIdle
) -> None:
    """Though its lifetime is over."""
    worker = await start(scene, place)
    session = await created(worker, on_idle=on_idle, lifetime_s=1000)
    files(engine, session)["a"] = "1"
    asleep = await worker.hibernate_session(session.id)
    await exported_one(worker, saved, session, Cause.HIBERNATION)
    ended = await created(worker, on_idle=on_idle, lifetime_s=1000)
    await lose_everything(scene, engine, worker)
    worker = await start(scene, place, name="another", clerk=Clerk())
    again = await taken_over(worker, replace(asleep, lifetime_s=0.0001))
    assert again.loss is not None
    assert "hibernated" in again.loss.reason
    assert again.woken_at is not None
    if on_idle is OnIdle.END:
        with pytest.raises(SessionEnded):
            await taken_over(worker, replace(ended, lifetime_s=0.0001))


async def test_a_damaged_export_is_passed_over(
    scene: Scene, engine: Engine, place: Path, saved: ObjectStorage
) -> None:
    worker = await start(scene, place)
    session = await created(worker)
    files(engine, session)["a"] = "1" * 1000
    await worker.take_snapshot(session.id, TakeSnapshot("first"))
    await until_marked(saved, session, 1)
    before = set(place.rglob("chunks/*/*"))
    files(engine, session)["a"] = "2" * 1000
    second = await worker.take_snapshot(session.id, TakeSnapshot("second"))

    async def both() -> bool:
        return len(await saved.marks(TENANT, session.id)) == 2

    await eventually(both)
    await lose_everything(scene, engine, worker)
    for chunk in set(place.rglob("chunks/*/*")) - before:
        chunk.write_bytes(chunk.read_bytes()[:-1])
    worker = await start(scene, place, name="another", clerk=Clerk())
    again = await taken_over(worker, session)
    assert files(engine, again) == {"a": "1" * 1000}
    assert second.id not in engine.store.snapshots


async def test_nobody_gets_an_empty_workspace_while_the_storage_is_away(
    scene: Scene, engine: Engine, place: Path, saved: ObjectStorage, tmp_path: Path
) -> None:
    worker = await start(scene, place)
    session = await created(worker)
    files(engine, session)["a"] = "1"
    await worker.take_snapshot(session.id, TakeSnapshot("first"))
    await until_marked(saved, session, 1)
    await lose_everything(scene, engine, worker)
    place.rename(tmp_path / "away")
    place.write_text("no folder")
    worker = await start(scene, place, name="another", clerk=Clerk())
    with pytest.raises(StorageProblem) as caught:
        await taken_over(worker, session)
    assert caught.value.retryable
    place.unlink()
    (tmp_path / "away").rename(place)
    assert files(engine, await taken_over(worker, session)) == {"a": "1"}


async def test_a_worker_whose_disk_was_lost(
    scene: Scene, engine: Engine, place: Path, saved: ObjectStorage
) -> None:
    """It still knows the session, or hears of it from its fleet."""
    worker = await start(scene, place)
    session = await created(worker)
    files(engine, session)["a"] = "1"
    await worker.hibernate_session(session.id)
    await exported_one(worker, saved, session, Cause.HIBERNATION)
    await eventually(lambda: not engine.store.attached)
    engine.store.workspaces.clear()
    again = await worker.recreate_session(session.id)
    assert files(engine, again) == {"a": "1"}
    assert again.loss is not None
    assert any(thing.startswith(f"{KEPT_FILES} as of") for thing in again.loss.kept)
    await lose_everything(scene, engine, worker)
    worker = await start(scene, place, name="another", clerk=Clerk())
    adopted = await worker.adopt_lost_session(again)
    assert adopted is not None
    assert files(engine, await worker.recreate_session(session.id)) == {"a": "1"}
