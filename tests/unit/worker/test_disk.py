"""O5: a worker whose disk is full says so, takes no creates, and sends creates elsewhere."""

from __future__ import annotations

import pytest
from tests.unit.worker.conftest import Scene, full_disk

from sandlot.domain.errors import StorageFull, Unavailable
from sandlot.domain.execution import ExecRequest
from sandlot.domain.session import CreateSession
from sandlot.testing.eventually import eventually
from sandlot.worker import disk
from sandlot.worker.service import WorkerService


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "LOOK_EVERY_S", 0.02)


async def _refused(worker: WorkerService) -> Unavailable:
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
    assert "the engine's disk is full" in health.problems
