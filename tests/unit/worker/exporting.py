"""Workers that save snapshots in a folder as object storage, for the tests of that."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.owned import OwnWorker
from tests.unit.worker.conftest import Scene
from tests.unit.worker.scripted import Engine
from tests.unit.worker.test_registrar import Clerk

from sandlot.domain.callers.principal import OWNER
from sandlot.domain.session import Session
from sandlot.domain.workspaces.exports import Cause, Mark
from sandlot.domain.workspaces.objects.locations import parse_location
from sandlot.domain.workspaces.snapshots import AUTOMATIC_LABEL, Snapshot
from sandlot.testing.eventually import eventually
from sandlot.worker import retried_work
from sandlot.worker.workspaces import automatic
from sandlot.worker.workspaces.objects.options import ObjectOptions
from sandlot.worker.workspaces.objects.storage import ObjectStorage
from sandlot.worker.workspaces.options import WorkspaceOptions

TENANT = OWNER.tenant
SOON = 0.05


def make_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retried_work, "RETRY_S", 0.05)
    monkeypatch.setattr(automatic, "LOOK_EVERY_S", 0.02)
    monkeypatch.setattr(automatic, "RETRY_S", 0.05)


def storage_in(place: Path) -> ObjectStorage:
    return ObjectStorage(ObjectOptions(parse_location(f"file://{place}"), key=bytes(32)))


async def start(
    scene: Scene, place: Path, *, name: str = "worker", clerk: Clerk | None = None, **options: object
) -> OwnWorker:
    workspaces = WorkspaceOptions(**options)  # type: ignore[arg-type]
    return await scene.start(
        objects=storage_in(place), workspaces=workspaces, registrar=clerk, worker_id=name
    )


async def until_saved(saved: ObjectStorage, *snapshots: str) -> None:
    """Until these and no others are saved."""

    async def same() -> bool:
        return {snapshot for _, snapshot in await saved.list(TENANT)} == set(snapshots)

    await eventually(same)


async def until_marked(saved: ObjectStorage, session: Session, generation: int) -> Mark:
    async def is_marked() -> bool:
        return any(mark.generation == generation for mark in await saved.marks(TENANT, session.id))

    await eventually(is_marked)
    return (await saved.marks(TENANT, session.id))[0]


async def automatic_of(worker: OwnWorker, session: Session) -> list[Snapshot]:
    page = await worker.list_snapshots(session_id=session.id)
    return [snapshot for snapshot in page.snapshots if AUTOMATIC_LABEL in snapshot.labels]


async def exported_one(worker: OwnWorker, saved: ObjectStorage, session: Session, cause: Cause) -> Snapshot:
    """The session's automatic snapshot, once it is the only one, and saved."""

    async def is_there() -> bool:
        found = await automatic_of(worker, session)
        return (
            len(found) == 1
            and found[0].labels == cause.labels
            and (TENANT, found[0].id) in await saved.list(TENANT)
            and found[0].id in [mark.snapshot for mark in await saved.marks(TENANT, session.id)]
        )

    await eventually(is_there)
    return (await automatic_of(worker, session))[0]


async def lose_everything(scene: Scene, engine: Engine, worker: OwnWorker) -> None:
    """The machine with its disk."""
    await worker.close()
    scene.lives.remove(worker)
    for sandbox_id in list(engine.sandboxes):
        engine.remove(sandbox_id)
    engine.store.attached.clear()
    engine.store.workspaces.clear()
    engine.store.snapshots.clear()
    engine.store.remove_folders()
    for path in scene.database.parent.iterdir():
        if path.is_file():
            path.unlink()
