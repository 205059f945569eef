"""Volumes of a fleet: each is found by its name on the worker that made it, and sessions that need it go there."""

from __future__ import annotations

import pytest

from sandlot.domain.callers.principal import ALL_SCOPES, OWNER, Principal, Scope
from sandlot.domain.errors import Conflict, Forbidden, NotFound, Unavailable, Unsupported
from sandlot.domain.history.positions import worker_tag
from sandlot.domain.ids import new_volume_id, volume_tag
from sandlot.domain.session import CreateSession, Session
from sandlot.domain.volumes.volume import CreateVolume, VolumeMode, VolumeUse
from sandlot.domain.workspaces.snapshots import TakeSnapshot
from sandlot.fleet.coordinator import asked_workers
from sandlot.fleet.directory.volume_names import VolumeEntry
from tests.fleet.fakes import TIMINGS, Scene

DATA = CreateVolume("data")


def using(volume: str, mode: VolumeMode = VolumeMode.RW, **options: object) -> CreateSession:
    return CreateSession(volumes=(VolumeUse(volume, mode),), **options)  # type: ignore[arg-type]


async def worker_of(scene: Scene, session: Session) -> str:
    found = await scene.directory.find(session.id)
    assert found is not None
    return found.worker.id


async def gone(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    await scene.pass_time(TIMINGS.lease_s + TIMINGS.lost_after_s + 1, silent=("w1",))
    monkeypatch.setattr(asked_workers, "FRESH_S", 0.0)


async def test_it_is_made_where_there_is_room(scene: Scene) -> None:
    volume = await scene.coordinator.create_volume(DATA)
    assert volume_tag(volume.id) == worker_tag("w1")
    await scene.report("w1", warm=1)
    other = await scene.coordinator.create_volume(CreateVolume("other"))
    assert volume_tag(other.id) == worker_tag("w2")
    scene.workers["w2"].set_draining(True)
    await scene.report("w2")
    third = await scene.coordinator.create_volume(CreateVolume("third"))
    assert volume_tag(third.id) == worker_tag("w1")
    listed = [each.id for each in (await scene.coordinator.list_volumes()).volumes]
    assert sorted(listed) == sorted([volume.id, other.id, third.id])
    scene.workers["w1"].set_draining(True)
    await scene.report("w1")
    with pytest.raises(Unavailable):
        await scene.coordinator.create_volume(CreateVolume("fourth"))


async def test_names_are_unique_in_the_fleet(scene: Scene) -> None:
    await scene.coordinator.create_volume(DATA)
    await scene.report("w1", warm=0)
    with pytest.raises(Conflict):
        await scene.coordinator.create_volume(DATA)
    stranger = scene.coordinator.acting_for(Principal("stranger"))
    theirs = await stranger.create_volume(DATA)
    assert (await stranger.get_volume("data")).id == theirs.id
    assert (await scene.coordinator.get_volume("data")).id != theirs.id
    for volume in (theirs.id,):
        with pytest.raises(NotFound):
            await scene.coordinator.get_volume(volume)
        with pytest.raises(NotFound):
            await scene.coordinator.create_session(using(volume))


async def test_sessions_go_where_it_is(scene: Scene) -> None:
    """By name and by id, with no question to another worker."""
    volume = await scene.coordinator.create_volume(DATA)
    await scene.report("w1", warm=2)
    await scene.report("w2", warm=9)
    for asked in ("data", volume.id):
        request = using(asked, VolumeMode.RO, thread=f"t-{asked}")
        session = (await scene.coordinator.create_session(request)).session
        assert await worker_of(scene, session) == "w1"
        assert not (await scene.coordinator.create_session(request)).created
    with pytest.raises(Unavailable, match="it is full"):
        await scene.coordinator.create_session(using("data"))


async def test_a_volume_that_is_not_there(scene: Scene) -> None:
    for volume in ("nothing", new_volume_id(worker_tag("w1")), new_volume_id("0" * 8)):
        with pytest.raises(NotFound):
            await scene.coordinator.get_volume(volume)
        with pytest.raises(NotFound):
            await scene.coordinator.create_session(using(volume))
        await scene.coordinator.delete_volume(volume)


async def test_what_is_on_different_workers(scene: Scene) -> None:
    await scene.coordinator.create_volume(DATA)
    await scene.report("w1", warm=1)
    await scene.coordinator.create_volume(CreateVolume("other"))
    both = (VolumeUse("data", VolumeMode.RO), VolumeUse("other", VolumeMode.RO))
    with pytest.raises(Unsupported, match="different workers: volume data on w1, volume other on w2"):
        await scene.coordinator.create_session(CreateSession(volumes=both))
    session = (await scene.coordinator.create_session(using("other"))).session
    snapshot = await scene.coordinator.take_snapshot(session.id, TakeSnapshot())
    with pytest.raises(Unsupported, match="the snapshot on w2"):
        await scene.coordinator.create_session(using("data", snapshot=snapshot.id))
    await scene.coordinator.create_session(using("other", VolumeMode.RO, snapshot=snapshot.id))


async def test_its_worker_is_gone(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    service = scene.coordinator
    volume = await service.create_volume(DATA)
    session = (await service.create_session(using("data", thread="t"))).session
    await gone(scene, monkeypatch)
    for call in (
        service.get_volume("data"),
        service.get_volume(volume.id),
        service.create_session(using("data")),
        service.delete_volume(volume.id),
    ):
        with pytest.raises(Unavailable, match="w1") as caught:
            await call
        assert caught.value.details["reason"] == "worker_gone"
        assert not caught.value.retryable
    page = await service.list_volumes()
    assert (page.volumes, page.missing) == ((), ("w1",))
    # Its session goes on without it, and says so.
    lost = await scene.another().get_session(session.id)
    assert lost.volumes == ()
    assert lost.loss is not None
    assert "volume data" in lost.loss.lost
    with pytest.raises(Conflict, match="delete it to free the name"):
        await service.create_volume(DATA)
    await service.delete_volume("data")
    again = await service.create_volume(DATA)
    assert volume_tag(again.id) == worker_tag("w2")
    # The worker is back: its volume is found by its id, since another one has the name.
    await scene.report("w1")
    lease = scene.workers["w1"].lease
    assert lease is not None
    assert await scene.directory.record_volumes(lease, [VolumeEntry.of(volume)]) == {volume.id}
    assert (await service.get_volume(volume.id)).id == volume.id
    assert (await service.get_volume("data")).id == again.id


async def test_it_needs_the_scope_for_files(scene: Scene) -> None:
    await scene.coordinator.create_volume(DATA)
    principal = Principal(OWNER.tenant, ALL_SCOPES - {Scope.FILES})
    service = scene.coordinator.acting_for(principal)
    for call in (
        service.create_volume(CreateVolume("more")),
        service.get_volume("data"),
        service.list_volumes(),
        service.delete_volume("data"),
        service.create_session(using("data")),
    ):
        with pytest.raises(Forbidden):
            await call
