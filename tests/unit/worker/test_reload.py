"""A worker whose environments change while it serves: sessions go on, pools are rebuilt for what changed."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from tests.owned import OwnWorker
from tests.unit.worker.conftest import ENVIRONMENT, Scene

from sandlot.config.registry.policies import shipped_policy
from sandlot.domain.callers.principal import OWNER
from sandlot.domain.capacity.limits import MIB, Limits
from sandlot.domain.capacity.pool import PoolPolicy
from sandlot.domain.environment import Environment, EnvironmentChanges, Recipe
from sandlot.domain.errors import InvalidRequest, PolicyDenied, SandlotError, Unavailable
from sandlot.domain.execution import ExecRequest
from sandlot.domain.service import Catalogue, EnvironmentInfo
from sandlot.domain.session import CreateSession
from sandlot.testing.eventually import eventually
from sandlot.worker.sessions.provisioning import Provisioning

WARM = PoolPolicy(size=2, min=2)
BASE = Recipe(ENVIRONMENT, pool=WARM)
DATA = Recipe(Environment("data", "my-data:1"), pool=WARM)


async def change(worker: OwnWorker, *recipes: Recipe) -> EnvironmentChanges:
    by_name = {recipe.environment.name: recipe for recipe in recipes}
    policies = {recipe.policy.name: recipe.policy for recipe in recipes if recipe.policy is not None}
    catalogue = Catalogue(tuple(EnvironmentInfo.of(recipe) for recipe in recipes))
    return await worker.reload(by_name, catalogue, policies)


async def ready(worker: OwnWorker, name: str, count: int = 2) -> None:
    await eventually(lambda: worker._environments.pools[name].ready == count)


async def test_an_added_environment_can_be_used_at_once(scene: Scene) -> None:
    worker = await scene.start(pool=WARM)
    await ready(worker, "base")
    warm = set(scene.engine.sandboxes)
    with pytest.raises(InvalidRequest, match=r"Unknown environment 'data'\. Available: base\."):
        await worker.create_session(CreateSession(environment="data"))
    assert await change(worker, BASE, DATA) == EnvironmentChanges(added=("data",))
    await ready(worker, "data")
    assert warm < set(scene.engine.sandboxes)  # what did not change keeps its warm sandboxes
    opened = await worker.create_session(CreateSession(environment="data"))
    assert opened.session.environment == "data"
    catalogue = await worker.acting_for(OWNER).catalogue()
    assert [known.name for known in catalogue.environments] == ["base", "data"]
    assert worker.room().keys() == {"base", "data"}  # what a fleet is told
    assert (await worker.health()).pools.keys() == {"base", "data"}


async def test_what_changed_gets_new_warm_sandboxes_and_sessions_go_on(scene: Scene) -> None:
    worker = await scene.start(pool=WARM)
    session = (await worker.create_session(CreateSession())).session
    await ready(worker, "base")
    warm = set(scene.engine.sandboxes) - {session.sandbox_id}
    larger = replace(BASE, environment=replace(ENVIRONMENT, limits=Limits(memory_bytes=900 * MIB)))
    assert await change(worker, larger) == EnvironmentChanges(changed=("base",))
    await eventually(lambda: warm <= set(scene.engine.destroyed))
    await ready(worker, "base")
    assert (await worker.execute(session.id, ExecRequest("echo hi"))).exit_code == 0
    assert session.sandbox_id in scene.engine.sandboxes
    new = (await worker.create_session(CreateSession())).session
    assert new.limits.memory_bytes == 900 * MIB
    assert scene.engine.sandboxes[new.sandbox_id or ""].limits.memory_bytes == 900 * MIB


async def test_an_image_rebuilt_under_its_name_is_a_change(scene: Scene) -> None:
    worker = await scene.start(pool=WARM)
    await ready(worker, "base")
    assert await change(worker, BASE) == EnvironmentChanges()
    before = set(scene.engine.sandboxes)
    scene.engine.rebuilt_images = ["sandlot/base", "another"]
    assert await change(worker, BASE) == EnvironmentChanges(changed=("base",))
    await eventually(lambda: before <= set(scene.engine.destroyed))


async def test_a_removed_environment_keeps_its_sessions_and_their_policy(scene: Scene) -> None:
    validation = shipped_policy("validation")
    worker = await scene.start(pool=WARM)
    await change(worker, BASE, replace(DATA, policy=validation))
    session = (await worker.create_session(CreateSession(environment="data"))).session
    await ready(worker, "data")
    warm = set(scene.engine.sandboxes)
    assert await change(worker, BASE) == EnvironmentChanges(removed=("data",))
    await eventually(lambda: len(warm & set(scene.engine.destroyed)) == 2)
    assert worker.room().keys() == {"base"}
    assert (await worker.execute(session.id, ExecRequest("true"))).exit_code == 0
    with pytest.raises(PolicyDenied):
        await worker.execute(session.id, ExecRequest("rm -rf /"))
    with pytest.raises(InvalidRequest, match="Unknown environment 'data'"):
        await worker.create_session(CreateSession(environment="data"))
    await worker.delete_session(session.id)


async def test_running_sessions_meet_the_new_policy(scene: Scene) -> None:
    worker = await scene.start(pool=PoolPolicy(size=0, min=0))
    validation = shipped_policy("validation")
    session = (await worker.create_session(CreateSession())).session
    await worker.execute(session.id, ExecRequest("rm -rf /"))  # nothing is there to forbid it
    await change(worker, replace(BASE, policy=validation))
    with pytest.raises(PolicyDenied):
        await worker.execute(session.id, ExecRequest("rm -rf /"))
    # The same name with other rules: the process that knew the old ones must not answer any more.
    lax = replace(shipped_policy("approval"), name=validation.name)
    await change(worker, replace(BASE, policy=lax))
    with pytest.raises(SandlotError) as caught:
        await worker.execute(session.id, ExecRequest("rm -rf /"))
    assert not isinstance(caught.value, PolicyDenied)
    await change(worker, BASE)
    await worker.execute(session.id, ExecRequest("rm -rf /"))


async def test_a_policy_that_cannot_start_changes_nothing(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = await scene.start(pool=WARM)
    await ready(worker, "base")
    before = set(scene.engine.sandboxes)

    def broken(_: object) -> None:
        raise SandlotError("the parser is not installed")

    monkeypatch.setattr("sandlot.bash.process.PolicyProcess.start", broken)
    with pytest.raises(SandlotError, match="the parser is not installed"):
        await change(worker, replace(BASE, policy=shipped_policy("validation")), DATA)
    assert worker.room().keys() == {"base"}
    assert set(scene.engine.sandboxes) == before
    session = (await worker.create_session(CreateSession())).session
    await worker.execute(session.id, ExecRequest("rm -rf /"))


async def test_who_waits_for_a_sandbox_of_the_old_recipe_is_told_to_retry(scene: Scene) -> None:
    scene.engine.creating.hold()
    worker = await scene.start(pool=PoolPolicy(size=0, min=0))
    waiting = asyncio.create_task(worker.create_session(CreateSession()))
    await eventually(lambda: scene.engine.creating.at_once == 1)
    await change(worker, BASE)
    with pytest.raises(Unavailable, match="was changed on the server") as caught:
        await waiting
    assert caught.value.retryable
    scene.engine.creating.release()
    assert (await worker.create_session(CreateSession())).session.environment == "base"


async def test_a_sandbox_of_another_recipe_is_never_taken(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A warm sandbox turns out to be dead, and the environment changes before the next one is claimed."""
    worker = await scene.start(pool=WARM)
    await ready(worker, "base")
    larger = replace(BASE, environment=replace(ENVIRONMENT, limits=Limits(memory_bytes=900 * MIB)))

    async def dead(*_: object) -> bool:
        await change(worker, larger)
        return False

    monkeypatch.setattr(Provisioning, "_bind", dead)
    with pytest.raises(Unavailable, match="was changed on the server"):
        await worker.create_session(CreateSession())


async def test_closing_waits_for_the_pools_that_are_being_retired(scene: Scene) -> None:
    worker = await scene.start(pool=WARM)
    await ready(worker, "base")
    before = set(scene.engine.sandboxes)
    scene.engine.destroying.hold()
    await change(worker)
    closing = asyncio.create_task(worker.close())
    await eventually(lambda: scene.engine.destroying.at_once >= 1)
    assert not closing.done()
    scene.engine.destroying.release()
    await closing
    assert before <= set(scene.engine.destroyed)
