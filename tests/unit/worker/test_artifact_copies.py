"""Artifacts in object storage: saved in the background, and there when the worker's disk is not."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.owned import OwnWorker
from tests.unit.worker.conftest import Scene
from tests.unit.worker.exporting import TENANT, lose_everything, make_fast, storage_in
from tests.unit.worker.scripted import Engine
from tests.unit.worker.test_artifacts import Files, Kept

from sandlot.domain.artifacts.artifact import Artifact
from sandlot.domain.callers.principal import Principal
from sandlot.domain.errors import NotFound, SandlotError, StorageProblem, Unsupported
from sandlot.domain.history.positions import worker_tag
from sandlot.domain.session import CreateSession
from sandlot.testing.eventually import eventually
from sandlot.worker.artifacts import copies
from sandlot.worker.artifacts.options import ArtifactOptions
from sandlot.worker.workspaces.objects.artifacts import index
from sandlot.worker.workspaces.objects.artifacts.storage import SavedArtifacts

CONTENT = random.Random(1).randbytes(1_500_000)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "objects"


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    make_fast(monkeypatch)
    monkeypatch.setattr(copies, "HEAR_EVERY_S", 0.0)


@pytest.fixture
async def saved(place: Path) -> AsyncIterator[SavedArtifacts]:
    """The storage as nobody's: for looking."""
    storage = storage_in(place)
    yield SavedArtifacts(storage)
    await storage.close()


async def started(scene: Scene, place: Path | None, *, name: str = "worker", **options: Any) -> OwnWorker:
    return await scene.start(
        objects=None if place is None else storage_in(place),
        artifacts=ArtifactOptions(**options),
        min_free_bytes=0,
        worker_id=name,
    )


async def session_on(worker: OwnWorker, engine: Engine, folder: Path) -> Kept:
    session = (await worker.create_session(CreateSession(thread="t1"))).session
    files = Files()
    engine.sandboxes[session.sandbox_id or ""].files = files  # type: ignore[assignment]
    return Kept(worker, session, files, folder)


async def kept_by(scene: Scene, engine: Engine, place: Path | None, **options: Any) -> Kept:
    return await session_on(await started(scene, place, **options), engine, scene.database.parent)


async def keep_one(kept: Kept, path: str = "plot.png", content: bytes = CONTENT) -> Artifact:
    kept.files.put(path, content)
    [artifact] = (await kept.keep(path)).kept
    return artifact


async def until_saved(saved: SavedArtifacts, *artifacts: Artifact, tenant: str = TENANT) -> None:
    """Until these and no others are saved."""

    async def same() -> bool:
        tags = {artifact.id[4:12] for artifact in artifacts} | {worker_tag("worker")}
        marks = [mark for tag in tags for mark in await saved.marks(tenant, tag)]
        found = {mark.artifact for mark in marks if await saved.find(tenant, mark.artifact) is not None}
        return found == {artifact.id for artifact in artifacts}

    await eventually(same)


async def lost(scene: Scene, engine: Engine, kept: Kept) -> None:
    """The machine with its disk."""
    await lose_everything(scene, engine, kept.worker)
    for path in sorted(kept.folder.rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()


# --- saving and deleting --------------------------------------------------------------------------


async def test_an_artifact_is_saved_and_its_deletion_too(
    scene: Scene, engine: Engine, place: Path, saved: SavedArtifacts
) -> None:
    kept = await kept_by(scene, engine, place)
    first, second = await keep_one(kept), await keep_one(kept, "other", b"2")
    await until_saved(saved, first, second)
    assert await saved.find(TENANT, first.id) == first
    assert not (await kept.worker.health()).problems
    await kept.worker.delete_artifact(first.id)
    with pytest.raises(NotFound):
        await kept.worker.get_artifact(first.id)
    await until_saved(saved, second)

    async def nothing_left() -> bool:
        return not await kept.worker._parts.artifacts._records.copies_to_do(10)

    await eventually(nothing_left)


async def test_what_retention_deletes_goes_there_too(
    scene: Scene, engine: Engine, place: Path, saved: SavedArtifacts
) -> None:
    kept = await kept_by(scene, engine, place, max_count=2)
    made = [await keep_one(kept, str(number), bytes([number])) for number in range(4)]
    await until_saved(saved, *made[2:])
    keeper = kept.worker._parts.artifacts
    keeper._clock = lambda: made[3].created_at + keeper._options.max_age_s + 1
    await keeper.sweep()
    await until_saved(saved)


async def test_what_was_kept_before_there_was_object_storage_is_saved(
    scene: Scene, engine: Engine, place: Path, saved: SavedArtifacts
) -> None:
    kept = await kept_by(scene, engine, None)
    artifact, deleted = await keep_one(kept), await keep_one(kept, "deleted", b"2")
    await kept.worker.delete_artifact(deleted.id)
    await kept.worker.close()
    scene.lives.remove(kept.worker)
    await started(scene, place)
    await until_saved(saved, artifact)


async def test_a_storage_that_does_not_answer_is_reported_and_tried_again(
    scene: Scene, engine: Engine, place: Path, saved: SavedArtifacts, tmp_path: Path
) -> None:
    kept = await kept_by(scene, engine, place)
    first = await keep_one(kept)
    await until_saved(saved, first)
    place.rename(tmp_path / "away")
    place.write_text("no folder")
    second = await keep_one(kept, "second", b"2")

    async def is_reported() -> bool:
        problems = (await kept.worker.health()).problems
        return any("rtifacts" in problem and "not saved in object storage" in problem for problem in problems)

    await eventually(is_reported)
    # What is here works as before.
    assert await kept.paths() == ["plot.png", "second"]
    assert await kept.content(first.id) == CONTENT
    with pytest.raises(NotFound):
        await kept.worker.get_artifact(f"art_{worker_tag('worker')}{'0' * 24}")
    with pytest.raises(StorageProblem):
        await kept.worker.get_artifact(f"art_{worker_tag('another')}{'0' * 24}")
    place.unlink()
    (tmp_path / "away").rename(place)
    await until_saved(saved, first, second)

    async def is_well() -> bool:
        return not (await kept.worker.health()).problems

    await eventually(is_well)


# --- another disk, another worker -----------------------------------------------------------------


async def test_a_worker_with_a_new_disk_has_its_artifacts_again(
    scene: Scene, engine: Engine, place: Path, saved: SavedArtifacts
) -> None:
    kept = await kept_by(scene, engine, place)
    artifact, other = await keep_one(kept), await keep_one(kept, "other", b"2")
    await until_saved(saved, artifact, other)
    await lost(scene, engine, kept)
    kept = await kept_by(scene, engine, place)

    async def is_listed() -> bool:
        return (await kept.worker.list_artifacts(thread="t1")).artifacts == (artifact, other)

    await eventually(is_listed)
    assert kept.on_disk() == []
    assert await kept.content(artifact.id) == CONTENT
    assert (await kept.worker.list_artifacts(session_id=kept.session.id)).artifacts == ()
    assert (await kept.worker.list_artifacts(session_id=artifact.session_id)).artifacts == (artifact, other)
    await kept.worker.delete_artifact(artifact.id)
    await until_saved(saved, other)
    # The same content, kept again, is here from now on.
    again = await keep_one(kept)
    assert again.id != artifact.id
    assert len(kept.on_disk()) == 1
    assert await kept.content(again.id) == CONTENT


async def test_another_worker_answers_for_one_that_is_gone(
    scene: Scene, engine: Engine, place: Path, saved: SavedArtifacts
) -> None:
    kept = await kept_by(scene, engine, place)
    artifact = await keep_one(kept)
    await until_saved(saved, artifact)
    await lost(scene, engine, kept)
    other = await session_on(await started(scene, place, name="other"), engine, scene.database.parent)
    own = await keep_one(other, "own", b"own")
    assert await other.worker.get_artifact(artifact.id) == artifact
    assert await other.content(artifact.id) == CONTENT
    assert await other.paths() == ["own"], "what it has itself"
    await until_saved(saved, artifact, own)
    artifacts = other.worker._parts.artifacts
    elsewhere = await artifacts.saved_page(TENANT, None, None, None, 10, {worker_tag("other")})
    assert elsewhere.artifacts == (artifact,)
    await other.worker.delete_artifact(artifact.id)
    with pytest.raises(NotFound):
        await other.worker.get_artifact(artifact.id)
    await until_saved(saved, own)
    elsewhere = await artifacts.saved_page(TENANT, None, None, None, 10, {worker_tag("other")})
    assert elsewhere.artifacts == ()


async def test_a_worker_that_comes_back_hears_of_deletions(
    scene: Scene, engine: Engine, place: Path, saved: SavedArtifacts
) -> None:
    kept = await kept_by(scene, engine, place)
    artifact, other = await keep_one(kept), await keep_one(kept, "other", b"2")
    await until_saved(saved, artifact, other)
    await saved.delete_for(TENANT, artifact.id)
    kept.worker._parts.artifacts.copies.wake()  # type: ignore[union-attr]

    async def is_gone() -> bool:
        return await kept.paths() == ["other"] and not await saved.deleted_elsewhere(artifact.id[4:12])

    await eventually(is_gone)
    assert len(kept.on_disk()) == 1


async def test_no_tenant_reaches_anothers_copies(
    scene: Scene, engine: Engine, place: Path, saved: SavedArtifacts
) -> None:
    kept = await kept_by(scene, engine, place)
    artifact = await keep_one(kept)
    await until_saved(saved, artifact)
    await lost(scene, engine, kept)
    worker = await started(scene, place, name="other")
    stranger = worker.acting_for(Principal("stranger"))
    for call in (stranger.get_artifact(artifact.id), stranger.read_artifact(artifact.id).__anext__()):  # type: ignore[attr-defined]
        with pytest.raises(NotFound):
            await call
    await stranger.delete_artifact(artifact.id)
    page = await worker._parts.artifacts.saved_page("stranger", None, None, None, 10, ())
    assert page.artifacts == ()
    assert b"".join([piece async for piece in worker.read_artifact(artifact.id)]) == CONTENT


async def test_a_damaged_copy_is_never_delivered_whole(
    scene: Scene, engine: Engine, place: Path, saved: SavedArtifacts
) -> None:
    kept = await kept_by(scene, engine, place)
    artifact = await keep_one(kept)
    await until_saved(saved, artifact)
    await lost(scene, engine, kept)
    chunk = next(path for path in place.rglob("chunks/*/*") if path.is_file())
    damaged = bytearray(chunk.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    chunk.write_bytes(damaged)
    worker = await started(scene, place, name="other")
    with pytest.raises(SandlotError, match="damaged"):
        [piece async for piece in worker.read_artifact(artifact.id)]


async def test_lists_of_what_is_elsewhere_need_no_answer_if_one_came_before(
    scene: Scene, engine: Engine, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index, "FRESH_S", 0.0)
    worker = await started(scene, place)
    page = worker._parts.artifacts.saved_page
    assert (await page(TENANT, None, None, None, 10, ())).artifacts == ()
    place.rename(tmp_path / "away")
    place.write_text("no folder")
    assert (await page(TENANT, None, None, None, 10, ())).artifacts == ()
    with pytest.raises(StorageProblem):
        await page("of whom nothing is known", None, None, None, 10, ())


async def test_a_worker_without_object_storage_says_so(scene: Scene) -> None:
    worker = await started(scene, None)
    with pytest.raises(Unsupported, match="SANDLOT_OBJECTS_URL"):
        await worker._parts.artifacts.saved_page(TENANT, None, None, None, 10, ())
