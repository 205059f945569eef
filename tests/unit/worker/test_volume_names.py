"""The name of a volume that is half made or half deleted: free at once, or soon, and never somebody's."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from tests.unit.worker.conftest import Scene
from tests.unit.worker.exporting import TENANT
from tests.unit.worker.scripted import Engine

from sandlot.domain.capacity.limits import MIB
from sandlot.domain.errors import Conflict, NotFound, StorageProblem, Unavailable
from sandlot.domain.history.positions import worker_tag
from sandlot.domain.ids import new_volume_id
from sandlot.domain.volumes.volume import CreateVolume, Volume
from sandlot.worker.volumes.records import RecordState
from sandlot.worker.volumes.volumes import Volumes

DATA = CreateVolume("data", 64 * MIB)


@pytest.fixture
def stored(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The volumes in the store. It has nothing but their ids."""
    stored: set[str] = set()

    async def create(volume_id: str, quota_bytes: int) -> None:
        stored.add(volume_id)

    async def delete(stored_id: str) -> None:
        stored.discard(stored_id)

    engine.store.abilities = replace(engine.store.abilities, volumes=True)
    monkeypatch.setattr(engine.store, "create_volume", create)
    monkeypatch.setattr(engine.store, "delete", delete)
    return stored


@pytest.fixture
async def volumes(scene: Scene, stored: set[str]) -> Volumes:
    # Nothing here waits for the sweep.
    return (await scene.start(orphan_grace_s=1000.0))._parts.volumes


async def leave(volumes: Volumes, stored: set[str], state: RecordState) -> Volume:
    """What a worker that dies in a call leaves."""
    left = Volume(new_volume_id(worker_tag("worker")), DATA.name, TENANT, 64 * MIB, 0.0)
    await volumes._records.add(left)
    await volumes._records.set_state(left.id, state)
    stored.add(left.id)
    return left


@pytest.mark.parametrize("state", [RecordState.MAKING, RecordState.DELETING])
async def test_a_dead_worker_does_not_hold_it(volumes: Volumes, stored: set[str], state: RecordState) -> None:
    left = await leave(volumes, stored, state)
    with pytest.raises(NotFound):
        await volumes.get(TENANT, "data")
    made = await volumes.create(TENANT, DATA)
    assert made.id != left.id
    assert stored == {made.id}
    assert (await volumes.get(TENANT, "data")).id == made.id
    with pytest.raises(Conflict, match="already have"):
        await volumes.create(TENANT, DATA)


async def test_it_is_being_deleted(
    volumes: Volumes, stored: set[str], engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await volumes.create(TENANT, DATA)
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def delete(stored_id: str) -> None:
        begun.set()
        await go_on.wait()
        stored.discard(stored_id)

    monkeypatch.setattr(engine.store, "delete", delete)
    deleting = asyncio.create_task(volumes.delete(TENANT, "data"))
    await begun.wait()
    with pytest.raises(Unavailable, match="still being deleted") as refused:
        await volumes.create(TENANT, DATA)
    assert refused.value.retryable
    go_on.set()
    await deleting
    second = await volumes.create(TENANT, DATA)
    assert stored == {second.id} != {first.id}


async def test_the_store_fails(
    volumes: Volumes, stored: set[str], engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    await leave(volumes, stored, RecordState.DELETING)

    async def delete(stored_id: str) -> None:
        raise StorageProblem("The disk is broken.")

    with monkeypatch.context() as broken:
        broken.setattr(engine.store, "delete", delete)
        with pytest.raises(Unavailable, match="still being deleted"):
            await volumes.create(TENANT, DATA)
    await volumes.create(TENANT, DATA)


@pytest.mark.parametrize("meanwhile", ["the list is read", "another one is deleted", "the name is looked up"])
async def test_a_create_that_ends_meanwhile_is_not_undone(
    meanwhile: str, volumes: Volumes, stored: set[str], engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was read a moment ago says that the volume is half made."""
    await leave(volumes, stored, RecordState.DELETING)  # the sweep comes to it first
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def create(volume_id: str, quota_bytes: int) -> None:
        stored.add(volume_id)
        begun.set()
        await go_on.wait()

    monkeypatch.setattr(engine.store, "create_volume", create)
    other = replace(DATA, name="other")
    creating = asyncio.create_task(volumes.create(TENANT, other))
    await begun.wait()

    def ends_within(owner: object, name: str) -> None:
        """Let the create end when this has its answer, but nobody has seen it."""
        real = getattr(owner, name)

        async def slow(*arguments: str) -> object:
            answer = await real(*arguments)
            go_on.set()
            await asyncio.wait([creating])
            return answer

        monkeypatch.setattr(owner, name, slow)

    if meanwhile == "the name is looked up":
        ends_within(volumes._records, "unfinished_named")
        with pytest.raises(Conflict, match="already have"):
            await volumes.create(TENANT, other)
    elif meanwhile == "the list is read":
        ends_within(volumes._records, "unfinished")
        await volumes.sweep()
    else:
        ends_within(engine.store, "delete")
        await volumes.sweep()
    made = await creating
    assert (await volumes.get(TENANT, "other")).id == made.id
    assert made.id in stored
    await volumes.sweep()
    assert stored == {made.id}


async def test_two_creates_at_once(volumes: Volumes, stored: set[str]) -> None:
    """One makes it, the other hears that it is there, and takes nothing away."""
    outcomes = await asyncio.gather(*(volumes.create(TENANT, DATA) for _ in range(2)), return_exceptions=True)
    assert {type(outcome) for outcome in outcomes} == {Volume, Conflict}
    assert stored == {outcome.id for outcome in outcomes if isinstance(outcome, Volume)}
