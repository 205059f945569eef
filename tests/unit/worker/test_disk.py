"""O5: a worker whose disk is full says so, takes no creates, and sends creates elsewhere."""

from __future__ import annotations

import shutil
from collections import namedtuple
from pathlib import Path

import pytest
from tests.unit.worker.conftest import OwnWorker, Scene, full_disk

from sandlot.domain.capacity.disk import MIN_FREE_BYTES, DiskSpace, disk_problem
from sandlot.domain.errors import StorageFull, Unavailable
from sandlot.domain.execution import ExecRequest
from sandlot.domain.session import CreateSession
from sandlot.testing.eventually import eventually
from sandlot.worker import disk

GIB = 1024**3
Usage = namedtuple("Usage", "total used free")


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "CHECK_INTERVAL_S", 0.02)


async def _refused(worker: OwnWorker) -> Unavailable:
    with pytest.raises(Unavailable, match="disk") as caught:
        await worker.create_session(CreateSession())
    assert (caught.value.retryable, caught.value.may_have_executed) == (True, False)
    assert caught.value.retry_after_s
    return caught.value


async def test_o5_full_disk(scene: Scene) -> None:
    worker = await scene.start()
    session = (await worker.create_session(CreateSession(thread="t"))).session
    large = CreateSession(metadata={"k": "v" * 10_000})
    with full_disk():
        with pytest.raises(Unavailable, match="disk") as caught:
            await worker.create_session(large)
        assert (caught.value.details["cause"], caught.value.retryable) == ("storage_full", True)
        made = scene.engine.creating.calls
        assert (await _refused(worker)).details["reason"] == "storage_full"
        assert scene.engine.creating.calls == made  # at once
        health = await worker.health()
        assert not health.creates
        assert any("full" in problem for problem in health.problems)
        assert worker.room() == {"base": (0, 0)}
        # What is there goes on.
        assert (await worker.create_session(CreateSession(thread="t"))).session.id == session.id
        assert (await worker.execute(session.id, ExecRequest(command="x"))).exit_code == 0

    async def ready() -> bool:
        return (await worker.health()).creates

    await eventually(ready)
    assert (await worker.create_session(large)).created


async def test_o5_disk_with_little_room(scene: Scene) -> None:
    worker = await scene.start(min_free_bytes=1 << 60)

    async def unready() -> bool:
        return not (await worker.health()).creates

    await eventually(unready)
    assert "SANDLOT_MIN_FREE_BYTES" in (await _refused(worker)).message
    assert worker.room() == {"base": (0, 0)}


async def test_o5_the_engines_disk(scene: Scene) -> None:
    worker = await scene.start(queue_timeout_s=0.2)
    scene.engine.creating.error = StorageFull("create container: no space left on device")
    with pytest.raises(Unavailable) as caught:
        await worker.create_session(CreateSession())
    assert caught.value.retryable
    health = await worker.health()
    assert not health.creates
    assert "Docker's disk is full" in health.problems


def test_when_a_disk_is_full() -> None:
    assert disk_problem(DiskSpace("d", MIN_FREE_BYTES, 100 * GIB), None) is None
    assert "d has 1023 MiB free" in str(disk_problem(DiskSpace("d", MIN_FREE_BYTES - 1, 100 * GIB), None))
    # A small one need not have as much as a large one: otherwise it would never take anything.
    assert disk_problem(DiskSpace("d", GIB // 10, GIB), None) is None
    assert disk_problem(DiskSpace("d", GIB // 100, GIB), None) is not None
    # What somebody has set is meant as it is.
    assert disk_problem(DiskSpace("d", GIB // 10, GIB), GIB) is not None
    assert disk_problem(DiskSpace("d", 0, GIB), 0) is None


@pytest.mark.parametrize("full", ["data", "docker"])
async def test_o5_a_worker_whose_disk_is_full_offers_nothing(
    scene: Scene, data_dir: Path, monkeypatch: pytest.MonkeyPatch, full: str
) -> None:
    """Its fleet sends creates elsewhere, and its operator is told; what it has goes on."""
    engine_folder = data_dir / "docker"
    free = {data_dir: 50 * GIB, engine_folder: 50 * GIB}
    folder, named = (data_dir, "data folder") if full == "data" else (engine_folder, "Docker's disk")
    monkeypatch.setattr(
        shutil, "disk_usage", lambda asked: Usage(100 * GIB, 100 * GIB - free[asked], free[asked])
    )
    worker = await scene.start(engine_folder=engine_folder, min_free_bytes=None)
    session = (await worker.create_session(CreateSession())).session
    assert worker.room()["base"][1] == 999
    assert not worker.condition().problems
    free[folder] = GIB // 2
    await eventually(lambda: worker.room() == {"base": (0, 0)})
    assert named in worker.condition().problems[0]
    health = await worker.health()
    assert (health.ready, health.creates, health.problems) == (True, False, worker.condition().problems)
    await _refused(worker)
    assert (await worker.get_session(session.id)).id == session.id
    free[folder] = 2 * GIB
    await worker.create_session(CreateSession())  # looks again
    assert worker.room()["base"][1] == 998


async def test_a_folder_that_cannot_be_seen_does_not_count(scene: Scene) -> None:
    worker = await scene.start(engine_folder=Path("/gone/docker"), min_free_bytes=None)
    await worker.create_session(CreateSession())
