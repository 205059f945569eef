"""The next life on the same engine and the same memory: what was, is; what was begun, is finished."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import pytest
from tests.unit.worker.conftest import Scene

from sandlot.domain.capacity.limits import LimitChange
from sandlot.domain.capacity.pool import PoolPolicy
from sandlot.domain.errors import (
    EngineProblem,
    EngineTimeout,
    LinkInterrupted,
    SandboxLost,
    SessionEnded,
    Unsupported,
)
from sandlot.domain.execution import ExecRequest
from sandlot.domain.ids import new_sandbox_id
from sandlot.domain.network.variables import with_proxy
from sandlot.domain.recovery import Purpose, SandboxRecord
from sandlot.domain.session import CreateSession, SessionChange, SessionState
from sandlot.testing.eventually import eventually
from sandlot.worker.sessions import live_session as live_module

THREAD = CreateSession(thread="t-1", env={"A": "1"}, metadata={"k": "v"}, idempotency_key="key")


# --- adoption ---------------------------------------------------------------------------------


async def test_sessions_get_their_sandboxes_back(scene: Scene) -> None:
    worker = await scene.start()
    session = (await worker.create_session(THREAD)).session
    sandbox = scene.engine.sandboxes[session.sandbox_id]
    await worker.start_exec(session.id, ExecRequest(command="wait", exec_id="e"))
    sandbox.env = None
    worker = await scene.restart(worker)
    result = asyncio.create_task(worker.execute(session.id, ExecRequest(command="other", exec_id="e")))
    await asyncio.sleep(0.02)
    sandbox.execs["e"].done.set()
    assert (await result).output == b"wait"  # the one that ran all the while, not another
    assert sandbox.env == with_proxy({"A": "1"})  # bound again: the worker may have died before it was
    now = await worker.get_session(session.id)
    assert replace(now, last_active_at=0.0) == replace(session, last_active_at=0.0)
    assert (len(scene.engine.made), scene.engine.destroyed) == (1, [])


async def test_thread_and_key_are_remembered(scene: Scene) -> None:
    worker = await scene.start()
    session = (await worker.create_session(THREAD)).session
    worker = await scene.restart(worker)
    for request in (CreateSession(thread="t-1"), THREAD):
        opened = await worker.create_session(request)
        assert (opened.session.id, opened.created) == (session.id, False)


async def test_change_and_activity_are_remembered(scene: Scene) -> None:
    worker = await scene.start(allow_never=True)
    session = (await worker.create_session(THREAD)).session
    await worker.update_session(session.id, SessionChange(idle_timeout_s=77.0, metadata={"k": "2"}))
    worker = await scene.restart(worker)
    now = await worker.get_session(session.id)
    assert (now.idle_timeout_s, now.metadata) == (77.0, {"k": "2"})


async def test_call_waits_for_the_adoption(scene: Scene) -> None:
    worker = await scene.start()
    session = (await worker.create_session(THREAD)).session
    scene.engine.adopting.error = LinkInterrupted("the agent has not redialled yet")
    worker = await scene.restart(worker)
    running = asyncio.create_task(worker.execute(session.id, ExecRequest(command="x")))
    await eventually(lambda: scene.engine.adopting.calls >= 2)  # it is asked again
    assert not running.done()
    scene.engine.adopting.error = None
    assert (await running).exit_code == 0


async def test_call_does_not_wait_for_ever(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_module, "USABLE_WITHIN_S", 0.05)
    worker = await scene.start()
    session = (await worker.create_session(THREAD)).session
    scene.engine.adopting.hold()
    worker = await scene.restart(worker)
    with pytest.raises(LinkInterrupted) as caught:
        await worker.execute(session.id, ExecRequest(command="x"))
    assert caught.value.retryable
    assert not caught.value.may_have_executed
    scene.engine.adopting.release()
    await eventually(lambda: worker._sessions.table.get("default", session.id).sandbox)


async def test_delete_while_it_is_being_adopted(scene: Scene) -> None:
    worker = await scene.start()
    session = (await worker.create_session(THREAD)).session
    scene.engine.adopting.hold()
    worker = await scene.restart(worker)
    running = asyncio.create_task(worker.execute(session.id, ExecRequest(command="x")))
    await asyncio.sleep(0.02)
    await worker.delete_session(session.id)
    with pytest.raises(SessionEnded, match="deleted"):
        await running
    assert session.sandbox_id in scene.engine.destroyed


async def test_loss_is_noticed_after_adoption_too(scene: Scene) -> None:
    worker = await scene.start()
    session = (await worker.create_session(THREAD)).session
    worker = await scene.restart(worker)
    await worker.execute(session.id, ExecRequest(command="x"))
    scene.engine.remove(session.sandbox_id)

    async def lost() -> bool:
        return (await worker.get_session(session.id)).state is SessionState.LOST

    await eventually(lost)


async def test_limits_are_set_again(scene: Scene) -> None:
    worker = await scene.start()
    scene.engine.updating.hold()  # the worker dies before they are set
    request = CreateSession(limits=LimitChange(pids=64))
    session = (await worker.create_session(request)).session
    worker = await scene.restart(worker)
    scene.engine.updating.release()
    await worker.execute(session.id, ExecRequest(command="x"))
    assert scene.engine.sandboxes[session.sandbox_id].limits.pids == 64


async def test_limits_that_can_no_longer_be_set_do_not_keep_it_from_being_adopted(scene: Scene) -> None:
    worker = await scene.start()
    session = (await worker.create_session(CreateSession(limits=LimitChange(pids=64)))).session
    await worker.execute(session.id, ExecRequest(command="x"))
    scene.engine.updating.error = Unsupported("the recipe was changed")
    worker = await scene.restart(worker)
    assert (await worker.execute(session.id, ExecRequest(command="x"))).exit_code == 0


async def test_time_while_the_worker_was_down_is_not_idleness(scene: Scene) -> None:
    worker = await scene.start()
    session = (await worker.create_session(CreateSession(idle_timeout_s=2.0))).session
    await worker.close()
    scene.lives.clear()
    await asyncio.sleep(2.1)
    worker = await scene.start()
    await asyncio.sleep(0.1)  # the reaper has looked a few times
    assert (await worker.execute(session.id, ExecRequest(command="x"))).exit_code == 0


async def test_lifetime_that_was_over_meanwhile_is_over(scene: Scene) -> None:
    worker = await scene.start()
    session = (await worker.create_session(CreateSession(lifetime_s=0.1))).session
    await worker.close()
    scene.lives.clear()
    await asyncio.sleep(0.12)
    worker = await scene.start()
    with pytest.raises(SessionEnded, match="lifetime"):
        await worker.execute(session.id, ExecRequest(command="x"))
    await eventually(lambda: session.sandbox_id in scene.engine.destroyed)


# --- loss and ends ----------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["gone", "exited"])
async def test_sandbox_that_died_meanwhile_is_reported_lost(scene: Scene, state: str) -> None:
    worker = await scene.start()
    session = (await worker.create_session(THREAD)).session
    await worker.close()
    scene.lives.clear()
    if state == "gone":
        scene.engine.remove(session.sandbox_id)
    else:
        scene.engine.states[session.sandbox_id] = state
    worker = await scene.start()
    with pytest.raises(SandboxLost, match=state) as caught:
        await worker.execute(session.id, ExecRequest(command="x"))
    assert caught.value.details["loss"]["generation"] == 1
    await eventually(lambda: session.sandbox_id in scene.engine.destroyed)
    again = await worker.recreate_session(session.id)
    assert again.generation == 2
    assert scene.engine.sandboxes[again.sandbox_id].env == with_proxy({"A": "1"})


async def test_sandbox_that_vanishes_while_it_is_adopted_is_lost(scene: Scene) -> None:
    worker = await scene.start()
    session = (await worker.create_session(THREAD)).session
    scene.engine.adopting.hold()
    worker = await scene.restart(worker)
    await eventually(lambda: scene.engine.adopting.at_once)
    scene.engine.remove(session.sandbox_id)
    scene.engine.adopting.release()
    with pytest.raises(SandboxLost):
        await worker.execute(session.id, ExecRequest(command="x"))
    assert (await worker.get_session(session.id)).state is SessionState.LOST


async def test_lost_stays_lost_and_the_generation_is_kept(scene: Scene) -> None:
    worker = await scene.start()
    session = (await worker.create_session(THREAD)).session
    scene.engine.sandboxes[session.sandbox_id].die("first")
    await eventually(lambda: session.sandbox_id in scene.engine.destroyed)
    await worker.recreate_session(session.id)
    worker = await scene.restart(worker)
    now = await worker.get_session(session.id)
    assert (now.generation, now.loss.reason) == (2, "first")
    scene.engine.sandboxes[now.sandbox_id].die("second")
    await eventually(lambda: now.sandbox_id in scene.engine.destroyed)
    worker = await scene.restart(worker)
    now = await worker.get_session(session.id)
    assert (now.state, now.generation, now.loss.reason) == (SessionState.LOST, 2, "second")
    assert (await worker.recreate_session(session.id)).generation == 3


async def test_ended_stays_ended_and_is_told(scene: Scene) -> None:
    worker = await scene.start()
    session = (await worker.create_session(THREAD)).session
    await worker.delete_session(session.id)
    worker = await scene.restart(worker)
    for call in (worker.get_session(session.id), worker.create_session(THREAD)):
        with pytest.raises(SessionEnded, match="deleted"):
            await call
    await worker.delete_session(session.id)
    assert (await worker.create_session(CreateSession(thread="t-1"))).created


async def test_removal_that_was_not_finished_is(scene: Scene) -> None:
    worker = await scene.start()
    session = (await worker.create_session(THREAD)).session
    scene.engine.destroying.error = EngineTimeout("the engine hangs")
    with pytest.raises(EngineTimeout):
        await worker.delete_session(session.id)
    worker = await scene.restart(worker)
    scene.engine.destroying.error = None
    await worker._sandboxes.sweep(time.time())
    await eventually(lambda: session.sandbox_id in scene.engine.destroyed)
    assert await worker._store.sandboxes() == []


# --- what nobody has --------------------------------------------------------------------------


async def test_warm_ones_belong_to_the_life_that_made_them(scene: Scene) -> None:
    worker = await scene.start(pool=PoolPolicy(size=2, min=2))
    await eventually(lambda: len(scene.engine.sandboxes) == 2)
    await worker._store.close()  # the process dies: nothing is cleaned up
    old = list(scene.engine.made)
    scene.lives.clear()
    later = await scene.start()
    await eventually(lambda: set(old) <= set(scene.engine.destroyed))
    assert await later._store.sandboxes() == []
    worker._reaper._loop.cancel()


async def test_sandbox_that_was_recorded_and_never_made_is_forgotten(scene: Scene) -> None:
    worker = await scene.start()
    await worker._store.add_sandbox(SandboxRecord(new_sandbox_id(), "base", Purpose.WARM))
    worker = await scene.restart(worker)

    async def forgotten() -> bool:
        return not await worker._store.sandboxes()

    await eventually(forgotten)


async def test_orphan_is_removed_after_two_sightings_and_its_grace(scene: Scene) -> None:
    worker = await scene.start(orphan_grace_s=30)
    session = (await worker.create_session(THREAD)).session
    old, young = scene.engine.put("sbx_old", age_s=60), scene.engine.put("sbx_young", age_s=10)
    now = time.time()
    assert await worker._sandboxes.sweep(now) == 0
    assert await worker._sandboxes.sweep(now + 1) == 1
    assert scene.engine.destroyed == [old.id]
    assert await worker._sandboxes.sweep(now + 25) == 1
    assert scene.engine.destroyed == [old.id, young.id]
    assert session.sandbox_id in scene.engine.sandboxes


async def test_reaper_sweeps_by_itself(scene: Scene) -> None:
    await scene.start(orphan_grace_s=0.1)
    scene.engine.put("sbx_orphan", age_s=60)
    await eventually(lambda: "sbx_orphan" in scene.engine.destroyed)


async def test_sandbox_that_is_being_made_is_no_orphan(scene: Scene) -> None:
    worker = await scene.start(orphan_grace_s=0)
    opened = await worker.create_session(THREAD)
    for _ in range(3):
        assert await worker._sandboxes.sweep(time.time() + 3600) == 0
    assert opened.session.sandbox_id in scene.engine.sandboxes


async def test_engine_that_cannot_be_asked_removes_nothing_and_the_reaper_goes_on(scene: Scene) -> None:
    worker = await scene.start(orphan_grace_s=0.1)
    session = (await worker.create_session(CreateSession(idle_timeout_s=3.0))).session
    scene.engine.listing.error = EngineProblem("the engine is not there")
    await eventually(lambda: scene.engine.listing.calls >= 2)
    assert session.sandbox_id in scene.engine.sandboxes
    await eventually(lambda: session.sandbox_id in scene.engine.destroyed)  # expiry needs no listing


async def test_engine_that_cannot_be_asked_at_start_is_told(scene: Scene) -> None:
    worker = await scene.start()
    session = (await worker.create_session(THREAD)).session
    await worker.close()
    scene.lives.clear()
    scene.engine.listing.error = EngineProblem("the engine is not there")
    with pytest.raises(EngineProblem):
        await scene.start()
    await scene.lives.pop().close()
    scene.engine.listing.error = None
    worker = await scene.start()  # nothing was given up meanwhile
    assert (await worker.execute(session.id, ExecRequest(command="x"))).generation == 1
