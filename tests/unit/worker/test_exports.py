"""Snapshots in object storage on a scripted engine: what is saved and deleted there, and when."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from tests.unit.worker.conftest import Scene
from tests.unit.worker.exporting import (
    SOON,
    TENANT,
    automatic_of,
    exported_one,
    make_fast,
    start,
    storage_in,
    until_marked,
    until_saved,
)
from tests.unit.worker.scripted import Engine
from tests.unit.worker.test_workspaces import created, files

from sandlot.domain.errors import NotFound, StorageProblem
from sandlot.domain.session import OnIdle
from sandlot.domain.workspaces.exports import Cause
from sandlot.domain.workspaces.snapshots import RestoreSnapshot, TakeSnapshot
from sandlot.testing.eventually import eventually
from sandlot.worker import failpoints
from sandlot.worker.failpoints import Step
from sandlot.worker.workspaces import automatic
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


# --- what is saved ----------------------------------------------------------------------------


async def test_named_snapshots_are_saved_and_deleted(
    scene: Scene, engine: Engine, place: Path, saved: ObjectStorage
) -> None:
    worker = await start(scene, place)
    session = await created(worker)
    files(engine, session)["a"] = "1"
    await worker.take_snapshot(session.id, TakeSnapshot())
    named = await worker.take_snapshot(session.id, TakeSnapshot("first"))
    await until_saved(saved, named.id)
    await until_marked(saved, session, 1)
    assert (await worker.get_workspace(session.id)).note == ""
    await worker.delete_snapshot(named.id)
    await until_saved(saved)

    async def is_done() -> bool:
        # The record goes last, after the object and the mark.
        return await worker._parts.snapshots.records.exports_to_do(10) == []

    await eventually(is_done)
    assert not await saved.marks(TENANT, session.id)


async def test_steps_are_not_saved(scene: Scene, place: Path, saved: ObjectStorage) -> None:
    worker = await start(scene, place)
    session = await created(worker)
    await worker.restore_snapshot(session.id, RestoreSnapshot(step="one"))
    await worker.take_snapshot(session.id, TakeSnapshot(step="one"))
    named = await worker.take_snapshot(session.id, TakeSnapshot("named"))
    await until_saved(saved, named.id)


async def test_a_hibernated_session_is_saved(
    scene: Scene, engine: Engine, place: Path, saved: ObjectStorage
) -> None:
    worker = await start(scene, place)
    session = await created(worker)
    files(engine, session)["a"] = "1"
    await worker.hibernate_session(session.id)
    first = await exported_one(worker, saved, session, Cause.HIBERNATION)
    woken = await worker.recreate_session(session.id)
    files(engine, woken)["a"] = "2"
    await worker.hibernate_session(session.id)
    await eventually(lambda: first.id not in engine.store.snapshots)
    second = await exported_one(worker, saved, session, Cause.HIBERNATION)
    await until_saved(saved, second.id)
    assert engine.store.snapshots[second.id] == {"a": "2"}


async def test_hibernation_without_changes_saves_nothing_new(
    scene: Scene, engine: Engine, place: Path, saved: ObjectStorage
) -> None:
    worker = await start(scene, place)
    session = await created(worker)
    files(engine, session)["a"] = "1"
    await worker.hibernate_session(session.id)
    first = await exported_one(worker, saved, session, Cause.HIBERNATION)
    await worker.recreate_session(session.id)
    await worker.hibernate_session(session.id)
    other = await created(worker)
    await worker.hibernate_session(other.id)  # it is looked at after the first
    await exported_one(worker, saved, other, Cause.HIBERNATION)
    assert (await exported_one(worker, saved, session, Cause.HIBERNATION)).id == first.id


async def test_a_running_session_is_saved_regularly(
    scene: Scene, engine: Engine, place: Path, saved: ObjectStorage
) -> None:
    worker = await start(scene, place, snapshot_every_s=SOON)
    session = await created(worker, on_idle=OnIdle.END)
    before = (await worker.get_session(session.id)).last_active_at
    for number in range(3):
        files(engine, session)["a"] = str(number)

        async def has_it(number: int = number) -> bool:
            taken = await automatic_of(worker, session)
            return len(taken) == 1 and engine.store.snapshots[taken[0].id] == {"a": str(number)}

        await eventually(has_it)
    last = await exported_one(worker, saved, session, Cause.INTERVAL)
    await until_saved(saved, last.id)
    assert (await worker.get_session(session.id)).last_active_at == before, "it is no use of the session"
    await worker.delete_session(session.id)
    await worker._parts.snapshots.sweep(set(), 0.0)
    await until_saved(saved)


async def test_automatic_snapshots_are_not_thinned_out(
    scene: Scene, engine: Engine, place: Path, saved: ObjectStorage
) -> None:
    worker = await start(scene, place, max_snapshots=2)
    session = await created(worker)
    await worker.hibernate_session(session.id)
    kept = await exported_one(worker, saved, session, Cause.HIBERNATION)
    await worker.recreate_session(session.id)
    for _ in range(4):
        await worker.take_snapshot(session.id, TakeSnapshot())
    page = await worker.list_snapshots(session_id=session.id)
    assert len(page.snapshots) == 3
    assert kept.id in [snapshot.id for snapshot in page.snapshots]


# --- failures and deaths ----------------------------------------------------------------------


async def test_a_failure_is_reported_and_tried_again(
    scene: Scene, engine: Engine, place: Path, saved: ObjectStorage, tmp_path: Path
) -> None:
    worker = await start(scene, place)
    session = await created(worker)
    first = await worker.take_snapshot(session.id, TakeSnapshot("first"))
    await until_saved(saved, first.id)
    place.rename(tmp_path / "away")
    place.write_text("no folder")
    second = await worker.take_snapshot(session.id, TakeSnapshot("second"))

    async def is_reported() -> bool:
        problems = (await worker.health()).problems
        return any("not saved in object storage" in problem for problem in problems)

    await eventually(is_reported)
    assert "not saved" in (await worker.get_workspace(session.id)).note
    place.unlink()
    (tmp_path / "away").rename(place)
    await until_saved(saved, first.id, second.id)

    async def is_well() -> bool:
        return not (await worker.health()).problems

    await eventually(is_well)
    assert (await worker.get_workspace(session.id)).note == ""


async def test_a_storage_that_is_away_at_the_start(
    scene: Scene, place: Path, saved: ObjectStorage, tmp_path: Path
) -> None:
    place.rename(tmp_path / "away")
    place.write_text("no folder")
    worker = await start(scene, place)
    session = await created(worker)
    snapshot = await worker.take_snapshot(session.id, TakeSnapshot("first"))
    with pytest.raises(StorageProblem):
        await worker.compare_snapshot("snp_" + "0" * 32)
    place.unlink()
    (tmp_path / "away").rename(place)
    await until_saved(saved, snapshot.id)
    with pytest.raises(NotFound):
        await worker.compare_snapshot("snp_" + "0" * 32)


class DiedError(Exception):
    """Instead of a death of the process."""


def dying_at(wanted: Step) -> Callable[[Step], None]:
    def hook(step: Step) -> None:
        if step is wanted:
            raise DiedError

    return hook


@pytest.mark.parametrize("step", [Step.EXPORT_PUBLISHED, Step.EXPORT_RECORDED, Step.SNAPSHOT_RECORDED])
async def test_a_worker_that_dies_saves_it_later(
    scene: Scene,
    engine: Engine,
    place: Path,
    saved: ObjectStorage,
    step: Step,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    worker = await start(scene, place)
    session = await created(worker)
    files(engine, session)["a"] = "1"
    died = asyncio.Event()

    def hook(reached: Step) -> None:
        if reached is step:
            died.set()
            raise DiedError

    monkeypatch.setattr(failpoints, "hook", hook)
    if step is Step.SNAPSHOT_RECORDED:
        with pytest.raises(DiedError):
            await worker.take_snapshot(session.id, TakeSnapshot("first"))
    else:
        await worker.take_snapshot(session.id, TakeSnapshot("first"))
    await died.wait()
    await worker.close()
    scene.lives.remove(worker)
    monkeypatch.setattr(failpoints, "hook", None)
    worker = await start(scene, place)
    (snapshot,) = (await worker.list_snapshots()).snapshots
    await until_saved(saved, snapshot.id)
    await until_marked(saved, session, 1)

    async def nothing_left() -> bool:
        return not await worker._parts.snapshots.records.exports_to_do(10)

    await eventually(nothing_left)


async def test_a_restart_saves_what_hibernated_before(
    scene: Scene, engine: Engine, place: Path, saved: ObjectStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(automatic, "LOOK_EVERY_S", 1000.0)
    worker = await start(scene, place)
    session = await created(worker)
    files(engine, session)["a"] = "1"
    await worker.hibernate_session(session.id)
    await worker.close()
    scene.lives.remove(worker)
    assert not await saved.list(TENANT)
    monkeypatch.setattr(automatic, "LOOK_EVERY_S", 0.02)
    worker = await start(scene, place)
    await exported_one(worker, saved, session, Cause.HIBERNATION)
