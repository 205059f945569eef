"""How far a worker is with each environment: what its pool knows, and what the provider says of its image."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import pytest
from tests.owned import OwnWorker
from tests.unit.worker.conftest import ENVIRONMENT, Scene
from tests.unit.worker.test_reload import change

from sandlot.domain.callers.principal import OWNER, Principal, Scope
from sandlot.domain.capacity.pool import PoolPolicy
from sandlot.domain.capacity.readiness import Readiness, ReadinessState, summarize
from sandlot.domain.environment import Environment, Recipe
from sandlot.domain.errors import EngineProblem, EngineTimeout, ImageMissing, SandlotError, Unavailable
from sandlot.domain.session import CreateSession
from sandlot.testing.eventually import eventually
from sandlot.worker.upkeep import reaper

NONE_WARM = PoolPolicy(size=0, min=0)
BASE = Recipe(ENVIRONMENT, pool=NONE_WARM)
DATA = Recipe(Environment("data", "my-data:1"), pool=NONE_WARM)


@pytest.fixture(autouse=True)
def _looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reaper, "LOOK_EVERY_S", 0.02)


async def _of(worker: OwnWorker, name: str) -> Readiness:
    catalogue = await worker.acting_for(OWNER).catalogue()
    [one] = next(each for each in catalogue.environments if each.name == name).readiness
    return one


async def _state(worker: OwnWorker, name: str) -> tuple[ReadinessState, str]:
    one = await _of(worker, name)
    return one.state, one.reason


async def test_an_image_that_nobody_used_is_looked_for(scene: Scene) -> None:
    missing = "Image my-data:1 is not on this machine. Build it."
    scene.engine.images = {ENVIRONMENT.image: True, "my-data:1": ImageMissing(missing)}
    worker = await scene.start(pool=NONE_WARM)
    await change(worker, BASE, DATA, replace(DATA, environment=Environment("elsewhere", "of-another")))

    async def looked() -> bool:
        return await _state(worker, "data") == (ReadinessState.MISSING, missing)

    await eventually(looked)
    assert await _state(worker, "base") == (ReadinessState.READY, "")
    assert await _state(worker, "elsewhere") == (ReadinessState.UNKNOWN, "")
    since = (await _of(worker, "data")).since
    scene.engine.images["my-data:1"] = True

    async def there() -> bool:
        return await _state(worker, "data") == (ReadinessState.READY, "")

    await eventually(there)
    now = (await _of(worker, "data")).since
    assert since is not None
    assert now is not None
    assert now > since


async def test_an_engine_that_does_not_answer_is_no_missing_image(scene: Scene) -> None:
    scene.engine.images = {ENVIRONMENT.image: EngineTimeout("Docker does not answer.", retryable=True)}
    worker = await scene.start(pool=NONE_WARM)
    await change(worker, BASE)
    assert await _state(worker, "base") == (ReadinessState.UNKNOWN, "Docker does not answer.")


async def test_what_the_pool_has_made_counts_more_than_what_is_found(scene: Scene) -> None:
    scene.engine.images = {
        ENVIRONMENT.image: ImageMissing("It is gone.")
    }  # what was prepared works without it
    worker = await scene.start(pool=NONE_WARM)
    await change(worker, BASE)
    scene.engine.creating.hold()
    warm = replace(BASE, pool=PoolPolicy(size=2, min=2))
    await change(worker, warm)

    async def preparing() -> bool:
        return (await _of(worker, "base")).state is ReadinessState.PREPARING

    await eventually(preparing)
    scene.engine.creating.release()

    async def filled() -> bool:
        one = await _of(worker, "base")
        return (one.state, one.warm, one.server) == (ReadinessState.READY, 2, "worker")

    await eventually(filled)


@pytest.mark.parametrize(
    ("error", "state"),
    [
        (EngineProblem("The disk is gone.", retryable=True), ReadinessState.FAILING),
        (ImageMissing("Image sandlot/base is not on this machine. Run `x`."), ReadinessState.MISSING),
    ],
)
async def test_a_failure_is_named_until_a_sandbox_is_made(
    scene: Scene, error: SandlotError, state: ReadinessState
) -> None:
    if isinstance(error, ImageMissing):
        scene.engine.images = {ENVIRONMENT.image: error}
    worker = await scene.start(pool=NONE_WARM, queue_timeout_s=0.3)
    await change(worker, BASE)
    scene.engine.creating.error = error
    with pytest.raises(Unavailable):
        await worker.create_session(CreateSession())
    assert await _state(worker, "base") == (state, error.message)
    scene.engine.creating.error = None

    async def works() -> bool:
        with suppress(Unavailable):  # until the next attempt is due
            await worker.create_session(CreateSession())
        return await _state(worker, "base") == (ReadinessState.READY, "")

    await eventually(works)


async def test_an_image_that_was_built_later_is_found_before_anybody_tries_again(scene: Scene) -> None:
    missing = ImageMissing("Image sandlot/base is not on this machine. Run `x`.")
    scene.engine.images = {ENVIRONMENT.image: missing}
    worker = await scene.start(pool=NONE_WARM, queue_timeout_s=0.3)
    await change(worker, BASE)
    scene.engine.creating.error = missing
    with pytest.raises(Unavailable):
        await worker.create_session(CreateSession())
    assert await _state(worker, "base") == (ReadinessState.MISSING, missing.message)
    scene.engine.images = {ENVIRONMENT.image: True}

    async def found() -> bool:
        return await _state(worker, "base") == (ReadinessState.READY, "")

    await eventually(found)


async def test_only_who_may_see_the_metrics_sees_the_servers(scene: Scene) -> None:
    worker = await scene.start(pool=NONE_WARM)
    await change(worker, BASE)
    tenant = Principal("acme", scopes=frozenset({Scope.SESSIONS_READ}))
    [environment] = (await worker.acting_for(tenant).catalogue()).environments
    assert (environment.name, environment.readiness) == ("base", ())


def test_states_are_summarized() -> None:
    ready, failing = Readiness("a", ReadinessState.READY), Readiness("b", ReadinessState.FAILING)
    assert summarize(()) == "-"
    assert summarize((ready, ready)) == "ready"
    assert summarize((ready, failing, ready)) == "2 ready, 1 failing"
