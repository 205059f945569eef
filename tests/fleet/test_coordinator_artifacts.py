"""Artifacts of a fleet: each is found on the worker that kept it."""

from __future__ import annotations

import pytest

from sandlot.domain.artifacts.artifact import Artifact, ArtifactPage
from sandlot.domain.callers.principal import ALL_SCOPES, OWNER, Principal, Scope
from sandlot.domain.errors import Forbidden, InvalidRequest, NotFound, StorageProblem, Unavailable
from sandlot.domain.execution import ExecRequest
from sandlot.domain.history.positions import worker_tag
from sandlot.domain.ids import artifact_tag, new_artifact_id
from sandlot.domain.service import SandboxService
from sandlot.domain.session import Session
from sandlot.fleet.coordinator import asked_workers
from tests.fleet.fakes import TIMINGS, Scene, nobody
from tests.fleet.test_coordinator_workspaces import on_each


async def kept(service: SandboxService, session: Session, name: str) -> Artifact:
    await service.execute(session.id, ExecRequest(command=f"echo -n {name} > {name}"))
    [artifact] = (await service.keep_artifacts(session.id, [name])).kept
    return artifact


async def content(service: SandboxService, artifact_id: str) -> bytes:
    return b"".join([piece async for piece in service.read_artifact(artifact_id)])


async def all_pages(service: SandboxService, limit: int, session_id: str | None = None) -> list[Artifact]:
    found: list[Artifact] = []
    page = await service.list_artifacts(session_id=session_id, limit=limit)
    while True:
        found += page.artifacts
        assert len(page.artifacts) <= limit
        assert page.missing == ()
        if page.next is None:
            return found
        page = await service.list_artifacts(session_id=session_id, after=page.next, limit=limit)


async def test_an_artifact_is_found_by_its_id(scene: Scene) -> None:
    service = scene.coordinator
    for worker, session in (await on_each(scene)).items():
        artifact = await kept(service, session, f"of-{worker}")
        assert artifact_tag(artifact.id) == worker_tag(worker)
        await service.delete_session(session.id)
        assert await service.get_artifact(artifact.id) == artifact
        assert await content(service, artifact.id) == f"of-{worker}".encode()
        for _ in range(2):
            await service.delete_artifact(artifact.id)
        with pytest.raises(NotFound):
            await content(service, artifact.id)


@pytest.mark.parametrize("limit", [1, 3, 1000])
async def test_pages_of_all_workers_are_one_list(scene: Scene, limit: int) -> None:
    sessions = list((await on_each(scene)).values())
    made = [
        await kept(scene.coordinator, session, f"f{number}") for number in range(4) for session in sessions
    ]
    assert await all_pages(scene.coordinator, limit) == made
    own = await all_pages(scene.coordinator, limit, sessions[0].id)
    assert own == [each for each in made if each.session_id == sessions[0].id]
    with pytest.raises(InvalidRequest):
        await scene.coordinator.list_artifacts(after="x")


async def test_unknown_ids(scene: Scene) -> None:
    service = scene.coordinator
    for unknown in (new_artifact_id("0" * 8), new_artifact_id(worker_tag("w1"))):
        with pytest.raises(NotFound):
            await service.get_artifact(unknown)
        with pytest.raises(NotFound):
            await content(service, unknown)
        await service.delete_artifact(unknown)
    for malformed in ("x", "../.."):
        with pytest.raises(NotFound):
            await service.delete_artifact(malformed)


@pytest.mark.parametrize("gone", [False, True])
async def test_a_worker_that_does_not_answer_is_named(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, gone: bool
) -> None:
    service = scene.coordinator
    artifacts = {
        worker: await kept(service, session, "a") for worker, session in (await on_each(scene)).items()
    }
    if gone:
        await scene.pass_time(TIMINGS.lease_s + TIMINGS.lost_after_s + 1, silent=("w2",))
    else:
        await scene.join("w2", nobody())
    monkeypatch.setattr(asked_workers, "FRESH_S", 0.0)
    page = await service.list_artifacts()
    assert "w2" in page.missing
    assert artifacts["w1"] in page.artifacts
    assert await content(service, artifacts["w1"].id) == b"a"
    for call in (service.get_artifact, service.delete_artifact):
        with pytest.raises(Unavailable, match="w2"):
            await call(artifacts["w2"].id)
    with pytest.raises(Unavailable, match="w2"):
        await content(service, artifacts["w2"].id)


@pytest.mark.parametrize("limit", [1, 3, 1000])
async def test_another_worker_lists_what_one_that_is_gone_has_saved(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    """Nothing is listed twice, also while the list of workers is a moment old."""
    service, sessions = scene.coordinator, await on_each(scene)
    made = [
        await kept(service, session, f"f{number}") for number in range(3) for session in sessions.values()
    ]
    for fake in scene.workers.values():
        fake.saved = made
    assert await all_pages(service, limit) == made
    await scene.pass_time(TIMINGS.lease_s + TIMINGS.lost_after_s + 1, silent=("w2",))
    monkeypatch.setattr(asked_workers, "FRESH_S", 0.0)
    assert await all_pages(service, limit) == made
    assert await all_pages(service, limit, sessions["w2"].id) == made[1::2]
    scene.workers["w1"].saved = None
    page = await service.list_artifacts()
    assert (page.artifacts, page.missing) == (tuple(made[::2]), ("w2",))


async def test_a_storage_that_does_not_answer_is_named(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    artifacts = [await kept(scene.coordinator, session, "a") for session in (await on_each(scene)).values()]

    async def fails(*_: object) -> ArtifactPage:
        raise StorageProblem("The object storage failed.", retryable=True)

    for fake in scene.workers.values():
        monkeypatch.setattr(fake, "list_saved_artifacts", fails)
    page = await scene.coordinator.list_artifacts()
    assert (page.artifacts, page.missing) == (tuple(artifacts), ("object storage",))


async def test_other_tenants_and_keys_without_the_scope(scene: Scene) -> None:
    session = next(iter((await on_each(scene)).values()))
    artifact = await kept(scene.coordinator, session, "a")
    stranger = scene.coordinator.acting_for(Principal("stranger"))
    with pytest.raises(NotFound):
        await stranger.get_artifact(artifact.id)
    with pytest.raises(NotFound):
        await content(stranger, artifact.id)
    await stranger.delete_artifact(artifact.id)
    assert (await stranger.list_artifacts()).artifacts == ()
    assert await content(scene.coordinator, artifact.id) == b"a"
    without = scene.coordinator.acting_for(Principal(OWNER.tenant, ALL_SCOPES - {Scope.FILES}))
    with pytest.raises(Forbidden):
        await without.get_artifact(artifact.id)
    with pytest.raises(Forbidden):
        await content(without, artifact.id)
