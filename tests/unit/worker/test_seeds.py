"""Environments with a set-up script or a seed: it runs once, and every new workspace starts from its result."""

from __future__ import annotations

import asyncio
import copy
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.worker.conftest import ENVIRONMENT, Scene
from tests.unit.worker.scripted import Engine, ScriptedExec
from tests.unit.worker.test_reload import change
from tests.unit.worker.test_workspaces import lost_of

from sandlot.domain.callers.principal import Principal
from sandlot.domain.capacity import pool as pool_policy
from sandlot.domain.capacity.limits import MIB, LimitChange
from sandlot.domain.capacity.pool import PoolPolicy
from sandlot.domain.environment import Environment, Recipe
from sandlot.domain.errors import EngineProblem, InvalidRequest, Unavailable
from sandlot.domain.service import SandboxService
from sandlot.domain.session import CreateSession, Session
from sandlot.domain.workspaces.setup import MAX_SETUP_BYTES, Setup
from sandlot.domain.workspaces.snapshots import RestoreSnapshot, TakeSnapshot
from sandlot.testing.eventually import eventually
from sandlot.worker import failpoints
from sandlot.worker.failpoints import Step
from sandlot.worker.workspaces.options import WorkspaceOptions

WARM = PoolPolicy(size=2, min=2)
OTHER = Recipe(Environment("other", "b:1"), pool=PoolPolicy(size=0, min=0))


def seeded(script: str) -> Environment:
    return replace(ENVIRONMENT, setup=Setup(script))


async def created(service: SandboxService, **options: object) -> Session:
    return (await service.create_session(CreateSession(**options))).session  # type: ignore[arg-type]


def files(engine: Engine, session: Session) -> dict[str, str]:
    """The files that the session's sandbox sees."""
    assert session.workspace is not None
    assert session.sandbox_id is not None
    assert engine.store.attached[session.sandbox_id] == session.workspace.id
    return engine.store.files(session.sandbox_id)


def running(engine: Engine) -> list[ScriptedExec]:
    """The scripts of sandboxes that there are."""
    return [
        run for sandbox in engine.sandboxes.values() for run in sandbox.execs.values() if run.request.argv
    ]


async def finish(engine: Engine) -> None:
    await eventually(lambda: len(running(engine)) == 1)
    running(engine)[0].done.set()


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pools try again at once."""
    monkeypatch.setattr(pool_policy, "FIRST_BACKOFF_S", 0.02)


async def test_a_script_runs_once_for_all_workspaces(scene: Scene, engine: Engine) -> None:
    worker = await scene.start(environment=seeded("write a 1\nwrite b 2"), pool=WARM)
    first, second = await created(worker), await created(worker)
    files(engine, first)["a"] = "changed"
    third = await created(worker)
    assert files(engine, first) == {"a": "changed", "b": "2"}
    assert files(engine, second) == files(engine, third) == {"a": "1", "b": "2"}
    assert first.workspace is not None
    assert first.workspace.snapshot is None
    assert len(engine.scripts) == 1
    worker = await scene.restart(worker, environment=seeded("write a 1\nwrite b 2"), pool=WARM)
    assert files(engine, await created(worker)) == {"a": "1", "b": "2"}
    assert len(engine.scripts) == 1
    assert (await worker.list_snapshots()).snapshots == (), "it is no snapshot of the users"


async def test_the_script_has_the_network_of_its_environment(scene: Scene, engine: Engine) -> None:
    await scene.start(environment=seeded("wait"), pool=WARM)
    await eventually(lambda: len(running(engine)) == 1)
    (sandbox,) = engine.sandboxes.values()
    assert sandbox.env is not None
    assert sandbox.env["HTTPS_PROXY"].startswith("http://127.0.0.1:")
    assert sandbox.listeners, "and somebody serves it"
    await finish(engine)


async def test_nobody_else_waits_for_a_script(scene: Scene, engine: Engine) -> None:
    base = seeded("write a 1\nwait")
    worker = await scene.start(environment=base, pool=WARM, create_concurrency=1)
    await change(worker, Recipe(base, pool=WARM), OTHER)
    shm = LimitChange(shm_bytes=1 * MIB)  # no warm sandbox can get it
    waiting = [asyncio.create_task(created(worker, limits=limits)) for limits in (shm, LimitChange(), shm)]
    assert files(engine, await created(worker, environment="other")) == {}
    assert files(engine, await created(worker, environment="other", limits=shm)) == {}
    await finish(engine)
    for session in await asyncio.gather(*waiting):
        assert files(engine, session) == {"a": "1"}
    assert len(engine.scripts) == 1


@pytest.mark.usefixtures("soon")
async def test_a_script_that_fails_breaks_the_environment(scene: Scene, engine: Engine) -> None:
    worker = await scene.start(environment=seeded("write a 1\nexit 3"), pool=WARM)
    with pytest.raises(
        Unavailable, match=r"(?s)failed with exit code 3\..*ends with:\nwrite a 1\nexit 3"
    ) as raised:
        await created(worker)
    assert raised.value.details == {"reason": "environment_broken", "cause": "invalid_request"}
    assert not raised.value.retryable
    assert any("exit code 3" in problem for problem in (await worker.health()).problems)
    await eventually(lambda: len(engine.scripts) >= 2)  # it is tried again
    await change(worker, Recipe(seeded("write a 2"), pool=WARM))
    assert files(engine, await created(worker)) == {"a": "2"}
    await eventually(lambda: len(engine.store.workspaces) == 3)  # two are warm
    assert len(engine.store.snapshots) == 1


@pytest.mark.usefixtures("soon")
async def test_a_script_whose_sandbox_dies_runs_again(scene: Scene, engine: Engine) -> None:
    worker = await scene.start(environment=seeded("write a 1\nwait"))
    creating = asyncio.create_task(created(worker))
    await eventually(lambda: len(running(engine)) == 1)
    next(iter(engine.sandboxes.values())).die()
    await eventually(lambda: len(engine.scripts) == 2)
    await finish(engine)
    assert files(engine, await creating) == {"a": "1"}


async def test_a_script_whose_sandbox_hangs(scene: Scene) -> None:
    environment = replace(ENVIRONMENT, setup=Setup("wait", timeout_s=0.01))
    worker = await scene.start(environment=environment, exec_grace_s=0.01)
    creating = asyncio.create_task(created(worker))
    await eventually(lambda: any("no longer answers" in each for each in worker._status.health().problems))
    creating.cancel()
    await asyncio.gather(creating, return_exceptions=True)


async def test_a_changed_script_or_image_runs_anew(scene: Scene, engine: Engine) -> None:
    worker = await scene.start(environment=seeded("write a 1"), pool=WARM, orphan_grace_s=0.05)
    old = await created(worker)
    assert await change(worker, Recipe(seeded("write a 2"), pool=WARM)) != ()
    assert files(engine, await created(worker)) == {"a": "2"}
    assert files(engine, old) == {"a": "1"}
    assert len(engine.store.snapshots) == 1, "the old result is gone"
    engine.builds, engine.rebuilt_images = 1, ["sandlot/base"]
    await change(worker, Recipe(seeded("write a 2"), pool=WARM))
    await created(worker)
    assert engine.scripts == ["write a 1", "write a 2", "write a 2"]
    await change(worker, Recipe(ENVIRONMENT, pool=WARM))
    assert files(engine, await created(worker)) == {}
    await eventually(lambda: not engine.store.snapshots)


async def test_a_script_that_nobody_wants_any_more_ends(scene: Scene, engine: Engine) -> None:
    worker = await scene.start(environment=seeded("wait"), pool=WARM, orphan_grace_s=0.05)
    await eventually(lambda: len(running(engine)) == 1)
    await change(worker, OTHER)
    await eventually(lambda: not running(engine))
    assert not engine.store.snapshots


async def test_a_result_that_is_gone_is_made_again(scene: Scene, engine: Engine) -> None:
    worker = await scene.start(environment=seeded("write a 1"))
    await created(worker)
    engine.store.snapshots.clear()
    assert files(engine, await created(worker)) == {"a": "1"}
    assert len(engine.scripts) == 2


async def test_volumes_cannot_be_seeded(scene: Scene, engine: Engine) -> None:
    engine.store.use(swaps=False)
    worker = await scene.start(environment=seeded("write a 1"), pool=WARM)
    wanted = (
        r"Environment base has a set-up script, but this server cannot take snapshots\. Volumes can do less"
    )
    for limits in (LimitChange(), LimitChange(shm_bytes=1 * MIB)):
        with pytest.raises(Unavailable, match=wanted) as raised:
            await created(worker, limits=limits)
        assert raised.value.details["reason"] == "environment_broken"
    assert any("cannot take snapshots" in problem for problem in (await worker.health()).problems)
    assert engine.made == []


async def test_a_clone_goes_when_its_sandbox_cannot_be_made(scene: Scene, engine: Engine) -> None:
    worker = await scene.start(environment=seeded("write a 1"))
    await created(worker)
    engine.creating.error = EngineProblem("no")
    with pytest.raises(Unavailable):
        await created(worker)
    assert len(engine.store.workspaces) == 1


@pytest.mark.usefixtures("soon")
async def test_every_new_workspace_starts_from_a_seed(scene: Scene, engine: Engine) -> None:
    options = WorkspaceOptions(max_snapshots=1, max_age_s=0.01)
    worker = await scene.start(orphan_grace_s=0.05)
    other = worker.acting_for(Principal("other"))
    made = await created(other)
    files(engine, made)["a"] = "1"
    seed = (await other.take_snapshot(made.id, TakeSnapshot())).id
    await worker.close()
    environment = replace(ENVIRONMENT, seed=seed)
    worker = await scene.start(environment=environment, pool=WARM, orphan_grace_s=0.05, workspaces=options)
    other = worker.acting_for(Principal("other"))
    session = await created(worker)
    assert files(engine, session) == {"a": "1"}
    assert session.workspace is not None
    assert session.workspace.snapshot == seed
    # retention leaves it alone, and takes all others
    later = (await other.take_snapshot(made.id, TakeSnapshot())).id
    await eventually(lambda: later not in engine.store.snapshots)
    assert seed in engine.store.snapshots
    # its owner may delete it
    await other.delete_snapshot(seed)
    await change(worker, Recipe(environment), OTHER)  # without warm sandboxes
    with pytest.raises(Unavailable, match=f"starts from snapshot {seed}, which this worker does not have"):
        await created(worker)
    assert files(engine, session) == {"a": "1"}


async def test_sessions_with_files_of_their_own(scene: Scene, engine: Engine) -> None:
    worker = await scene.start(environment=seeded("write a 1"), pool=WARM)
    session = await created(worker)
    files(engine, session)["a"] = "mine"
    snapshot = await worker.take_snapshot(session.id, TakeSnapshot())
    fork = await created(worker, snapshot=snapshot.id)
    assert files(engine, fork) == {"a": "mine"}
    engine.remove(session.sandbox_id or "")
    await lost_of(worker, session)
    assert files(engine, await worker.recreate_session(session.id)) == {"a": "mine"}
    restored = await worker.restore_snapshot(session.id, RestoreSnapshot(snapshot.id))
    assert files(engine, restored.session) == {"a": "mine"}


async def test_a_stopping_worker_ends_the_script(scene: Scene, engine: Engine) -> None:
    worker = await scene.start(environment=seeded("write a 1\nwait"), pool=WARM)
    await eventually(lambda: len(running(engine)) == 1)
    worker = await scene.restart(worker, environment=seeded("write a 1\nwait"), pool=WARM)
    creating = asyncio.create_task(created(worker))
    await finish(engine)
    assert files(engine, await creating) == {"a": "1"}
    assert len(engine.scripts) == 2


class Death:
    """Remembers what a worker that dies at a step leaves behind, on its disk and in the engine."""

    def __init__(self, step: Step, engine: Engine, data_dir: Path, aside: Path) -> None:
        self.left: Engine | None = None
        self._step = step
        self._engine = engine
        self._folders = data_dir, aside

    def __call__(self, step: Step) -> None:
        if step is not self._step or self.left is not None:
            return
        shutil.copytree(*self._folders)
        self.left = Engine()
        for sandbox_id in self._engine.sandboxes:
            self.left.put(sandbox_id, age_s=60)
        for name in ("workspaces", "snapshots", "attached"):
            getattr(self.left.store, name).update(copy.deepcopy(getattr(self._engine.store, name)))


@pytest.mark.parametrize(
    "step",
    [Step.SANDBOX_RECORDED, Step.SANDBOX_MADE, Step.SEED_STORED, Step.SEED_RECORDED, Step.SEED_CLONED],
)
async def test_dies_at_every_step(
    step: Step, scene: Scene, engine: Engine, data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    death = Death(step, engine, data_dir, tmp_path / "left")
    monkeypatch.setattr(failpoints, "hook", death)
    worker = await scene.start(environment=seeded("write a 1"))
    await created(worker)
    await worker.close()
    assert death.left is not None
    after = Scene(death.left, tmp_path / "left")
    worker = await after.start(environment=seeded("write a 1"), orphan_grace_s=0.05)
    try:
        session = await created(worker)
        assert files(death.left, session) == {"a": "1"}
        store = death.left.store
        await eventually(lambda: (len(store.workspaces), len(store.snapshots)) == (1, 1))
        recorded = step in (Step.SEED_RECORDED, Step.SEED_CLONED)
        assert len(death.left.scripts) == (0 if recorded else 1)
        assert set(death.left.sandboxes) == {session.sandbox_id}
    finally:
        await worker.close()


def test_what_a_script_may_be() -> None:
    assert Setup("true").digest == Setup("true", timeout_s=5).digest != Setup("false").digest
    for wrong in ("", " \n", "a\0b", "x" * (MAX_SETUP_BYTES + 1), "\udc00"):
        with pytest.raises(InvalidRequest, match="setup"):
            Setup(wrong)
    for seconds in (0, -1, float("nan"), 1e9):
        with pytest.raises(InvalidRequest, match="setup_timeout_s"):
            Setup("true", seconds)
    with pytest.raises(InvalidRequest, match="cannot both"):
        Environment("a", "b", setup=Setup("true"), seed="snp_" + "0" * 32)
    with pytest.raises(InvalidRequest, match="not a snapshot"):
        Environment("a", "b", seed="latest")
