"""A sandbox that is gone, and a session that is ended, as seen by those who were using it."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest
from tests.unit.worker.conftest import OwnWorker, Scene, full_disk
from tests.unit.worker.scripted import ScriptedSandbox

from sandlot.domain.capacity.limits import LimitChange
from sandlot.domain.errors import (
    Conflict,
    EngineTimeout,
    InvalidRequest,
    NotFound,
    SandboxLost,
    SandlotError,
    SessionEnded,
    Unavailable,
)
from sandlot.domain.execution import ExecRequest
from sandlot.domain.network.variables import with_proxy
from sandlot.domain.session import CreateSession, Session, SessionState
from sandlot.testing.eventually import eventually

THREAD = CreateSession(thread="t-1", env={"A": "1"})


async def opened(scene: Scene, **options: object) -> tuple[OwnWorker, Session, ScriptedSandbox]:
    worker = await scene.start(**options)
    session = (await worker.create_session(THREAD)).session
    return worker, session, scene.engine.sandboxes[session.sandbox_id]


async def is_lost(worker: OwnWorker, session: Session) -> bool:
    return (await worker.get_session(session.id)).state is SessionState.LOST


# --- loss -------------------------------------------------------------------------------------


async def test_loss_is_noticed_reported_and_got_over(scene: Scene) -> None:
    worker, session, sandbox = await opened(scene)
    sandbox.die("the kernel killed it")
    await eventually(lambda: is_lost(worker, session))
    with pytest.raises(SandboxLost, match="the kernel killed it") as caught:
        await worker.execute(session.id, ExecRequest(command="x"))
    assert not caught.value.may_have_executed
    loss = caught.value.details["loss"]
    assert (loss["generation"], loss["reason"]) == (1, "the kernel killed it")
    assert loss["lost"]
    assert loss["kept"]
    again = await worker.recreate_session(session.id)
    assert (again.id, again.generation, again.state) == (session.id, 2, SessionState.ACTIVE)
    assert again.loss.generation == 1  # what was lost can still be read
    assert scene.engine.sandboxes[again.sandbox_id].env == with_proxy({"A": "1"})
    result = await worker.execute(session.id, ExecRequest(command="x"))
    assert result.generation == 2
    await eventually(lambda: sandbox.id in scene.engine.destroyed)


async def test_loss_during_a_call(scene: Scene) -> None:
    worker, session, sandbox = await opened(scene)
    running = asyncio.create_task(worker.execute(session.id, ExecRequest(command="wait")))
    await eventually(lambda: sandbox.execs)
    sandbox.die("it was killed")
    with pytest.raises(SandboxLost, match=session.id) as caught:
        await running
    assert caught.value.may_have_executed
    assert caught.value.details["loss"]["reason"] == "it was killed"
    assert await is_lost(worker, session)


async def test_loss_while_events_are_read_and_input_is_written(scene: Scene) -> None:
    worker, session, sandbox = await opened(scene)
    execution = await worker.start_exec(session.id, ExecRequest(command="wait"))
    reading = asyncio.create_task(execution.result())
    await asyncio.sleep(0.01)
    sandbox.die()
    for call in (reading, execution.write_stdin(b"x")):
        with pytest.raises(SandboxLost, match=session.id) as caught:
            await call
        assert caught.value.details["loss"]["generation"] == 1


async def test_loss_is_told_by_files_too(scene: Scene) -> None:
    worker, session, sandbox = await opened(scene)
    files = worker.files(session.id)
    assert await files.read_bytes("a") == b"a"
    pieces = files.read("a")
    assert await anext(pieces) == b"first"
    async with files.watch(".") as changes:
        sandbox.die()
        for call in (anext(pieces), anext(changes)):
            with pytest.raises(SandboxLost, match=session.id):
                await call
    with pytest.raises(SandboxLost, match=session.id):
        await files.read_bytes("a")


async def test_call_of_a_former_generation_says_that_it_was_lost(scene: Scene) -> None:
    worker, session, sandbox = await opened(scene)
    execution = await worker.start_exec(session.id, ExecRequest(command="wait"))
    sandbox.die()
    await eventually(lambda: is_lost(worker, session))
    await worker.recreate_session(session.id)
    with pytest.raises(SandboxLost):
        await execution.result()
    assert (await worker.get_session(session.id)).generation == 2
    assert not await is_lost(worker, session)  # the news was old


async def test_living_sandbox_is_not_replaced(scene: Scene) -> None:
    worker, session, _ = await opened(scene)
    with pytest.raises(Conflict):
        await worker.recreate_session(session.id)
    assert len(scene.engine.made) == 1


async def test_recreating_twice_at_once_makes_one(scene: Scene) -> None:
    worker, session, sandbox = await opened(scene)
    sandbox.die()
    await eventually(lambda: is_lost(worker, session))
    answers = await asyncio.gather(
        *(worker.recreate_session(session.id) for _ in range(5)), return_exceptions=True
    )
    assert sum(isinstance(answer, Conflict) for answer in answers) == 4
    assert (await worker.get_session(session.id)).generation == 2
    assert len(scene.engine.made) == 2


async def test_recreate_that_fails_leaves_it_lost_and_may_be_tried_again(scene: Scene) -> None:
    worker, session, sandbox = await opened(scene, queue_timeout_s=0.05)
    sandbox.die()
    await eventually(lambda: is_lost(worker, session))
    scene.engine.creating.hold()
    with pytest.raises(Unavailable):
        await worker.recreate_session(session.id)
    assert await is_lost(worker, session)
    scene.engine.creating.release()
    assert (await worker.recreate_session(session.id)).generation == 2


class TestThreads:
    async def test_lost_session_itself_is_the_answer(self, scene: Scene) -> None:
        worker, session, sandbox = await opened(scene)
        sandbox.die()
        await eventually(lambda: is_lost(worker, session))
        again = await worker.create_session(THREAD)
        assert (again.created, again.session.id) == (False, session.id)
        assert again.session.state is SessionState.LOST

    async def test_recreate_lost_makes_one_for_all_who_ask(self, scene: Scene) -> None:
        worker, session, sandbox = await opened(scene)
        sandbox.die("gone")
        await eventually(lambda: is_lost(worker, session))
        scene.engine.creating.delay_s = 0.02
        request = CreateSession(thread="t-1", recreate_lost=True)
        answers = await asyncio.gather(*(worker.create_session(request) for _ in range(10)))
        assert {answer.session.generation for answer in answers} == {2}
        assert {answer.session.loss.reason for answer in answers} == {"gone"}
        assert len(scene.engine.made) == 2

    async def test_recreate_lost_and_delete_at_once(self, scene: Scene) -> None:
        worker, session, sandbox = await opened(scene)
        sandbox.die()
        await eventually(lambda: is_lost(worker, session))
        request = CreateSession(thread="t-1", recreate_lost=True)
        _, answer = await asyncio.gather(worker.delete_session(session.id), worker.create_session(request))
        assert answer.session.state is SessionState.ACTIVE
        if answer.session.id != session.id:
            assert (await worker.execute(answer.session.id, ExecRequest(command="x"))).generation == 1


# --- deletion ---------------------------------------------------------------------------------


async def test_when_delete_returns_the_sandbox_is_gone(scene: Scene) -> None:
    worker, session, sandbox = await opened(scene)
    scene.engine.destroying.delay_s = 0.05
    await worker.delete_session(session.id)
    assert scene.engine.destroyed == [sandbox.id]
    assert await worker._store.sandboxes() == []


async def test_every_one_of_many_deletes_returns_when_it_is_gone(scene: Scene) -> None:
    worker, session, sandbox = await opened(scene)
    scene.engine.destroying.delay_s = 0.02

    async def delete() -> None:
        await worker.delete_session(session.id)
        assert sandbox.id in scene.engine.destroyed

    await asyncio.gather(*(delete() for _ in range(10)))
    await worker.delete_session(session.id)
    with pytest.raises(NotFound) as caught:
        await worker.delete_session("ses_" + "0" * 32)
    assert type(caught.value) is NotFound


async def test_delete_of_a_lost_session_waits_for_what_is_left_of_it(scene: Scene) -> None:
    worker, session, sandbox = await opened(scene)
    scene.engine.destroying.delay_s = 0.05
    sandbox.die()
    await eventually(lambda: is_lost(worker, session))
    await worker.delete_session(session.id)
    assert sandbox.id in scene.engine.destroyed


async def test_delete_during_a_call(scene: Scene) -> None:
    worker, session, sandbox = await opened(scene)
    running = asyncio.create_task(worker.execute(session.id, ExecRequest(command="wait")))
    await eventually(lambda: sandbox.execs)
    await worker.delete_session(session.id)
    with pytest.raises(SessionEnded, match="deleted") as caught:
        await running
    assert caught.value.may_have_executed


async def test_delete_while_a_call_waits_for_the_limits(scene: Scene) -> None:
    worker = await scene.start()
    scene.engine.updating.hold()
    session = (await worker.create_session(CreateSession(limits=LimitChange(pids=64)))).session
    running = asyncio.create_task(worker.execute(session.id, ExecRequest(command="x")))
    await asyncio.sleep(0.02)
    await worker.delete_session(session.id)
    with pytest.raises(SessionEnded, match="deleted") as caught:
        await running
    assert not caught.value.may_have_executed


async def test_calls_around_a_delete_run_or_say_that_it_ended(scene: Scene) -> None:
    worker = await scene.start()
    ran = cut = 0
    for turns in range(20):  # of the loop, which the first ones have before the delete
        session = (await worker.create_session(CreateSession())).session
        execute = partial(worker.execute, session.id)
        before = [asyncio.create_task(execute(ExecRequest(command="x"))) for _ in range(5)]
        for _ in range(turns):
            await asyncio.sleep(0)
        deleting = asyncio.create_task(worker.delete_session(session.id))
        after = [asyncio.create_task(execute(ExecRequest(command="x"))) for _ in range(5)]
        for answer in await asyncio.gather(*before, return_exceptions=True):
            if isinstance(answer, BaseException):
                assert isinstance(answer, SessionEnded), repr(answer)
                cut += 1
            else:
                assert answer.exit_code == 0
                ran += 1
        for answer in await asyncio.gather(*after, return_exceptions=True):
            assert isinstance(answer, SessionEnded), repr(answer)
            assert not answer.may_have_executed
        await deleting
    assert ran, "the delete always came first"
    assert cut, "the delete always came last"


async def test_engine_that_fails_at_delete_is_told_and_the_sweep_finishes(scene: Scene) -> None:
    worker, session, sandbox = await opened(scene)
    scene.engine.destroying.error = EngineTimeout("the engine did not answer")
    for _ in range(2):  # the second one too is told, not that all is well
        with pytest.raises(EngineTimeout):
            await worker.delete_session(session.id)
    with pytest.raises(SessionEnded):
        await worker.execute(session.id, ExecRequest(command="x"))
    scene.engine.destroying.error = None
    await worker._sandboxes.sweep(0.0)
    assert sandbox.id in scene.engine.destroyed
    await worker.delete_session(session.id)
    assert await worker._store.sandboxes() == []


async def test_full_disk_keeps_nobody_from_deleting(scene: Scene) -> None:
    worker, session, sandbox = await opened(scene)
    with full_disk():
        await worker.delete_session(session.id)
    assert sandbox.id in scene.engine.destroyed
    await worker._sessions.save_activity()
    worker = await scene.restart(worker)
    with pytest.raises(SessionEnded, match="deleted"):  # and not lost, as what was on the disk would say
        await worker.get_session(session.id)


async def test_what_a_full_disk_did_not_take_never_overwrites_what_came_after(scene: Scene) -> None:
    worker, session, sandbox = await opened(scene)
    with full_disk():
        sandbox.die()
        await eventually(lambda: is_lost(worker, session))
        await eventually(lambda: sandbox.id in scene.engine.destroyed)
    await worker.delete_session(session.id)
    await worker._sessions.save_activity()
    worker = await scene.restart(worker)
    with pytest.raises(SessionEnded, match="deleted"):
        await worker.get_session(session.id)


async def test_thread_is_free_again_once_the_disk_has_room(scene: Scene) -> None:
    worker, session, _ = await opened(scene)
    with full_disk():
        await worker.delete_session(session.id)
    again = await worker.create_session(THREAD)  # at once, not when the end is written some time
    assert again.created
    worker = await scene.restart(worker)
    assert (await worker.create_session(THREAD)).session.id == again.session.id


# --- execs ------------------------------------------------------------------------------------


async def test_timeouts_have_a_default_and_a_ceiling(scene: Scene) -> None:
    worker, session, sandbox = await opened(scene, default_exec_timeout_s=5, max_exec_timeout_s=10)
    await worker.execute(session.id, ExecRequest(command="x", exec_id="default"))
    await worker.execute(session.id, ExecRequest(command="x", exec_id="most", timeout_s=10))
    assert sandbox.execs["default"].request.timeout_s == 5
    assert sandbox.execs["most"].request.timeout_s == 10
    await worker.start_exec(session.id, ExecRequest(command="x", exec_id="open-ended", output_limit=None))
    assert sandbox.execs["open-ended"].request.timeout_s == 10
    for call in (worker.execute, worker.start_exec):
        with pytest.raises(InvalidRequest, match="at most 10"):
            await call(session.id, ExecRequest(command="x", timeout_s=10.1))


async def test_default_is_held_to_the_ceiling(scene: Scene) -> None:
    worker, session, sandbox = await opened(scene, default_exec_timeout_s=300, max_exec_timeout_s=10)
    await worker.execute(session.id, ExecRequest(command="x", exec_id="e"))
    assert sandbox.execs["e"].request.timeout_s == 10


async def test_exec_is_looked_at_waited_for_and_ended(scene: Scene) -> None:
    worker, session, _ = await opened(scene)
    await worker.start_exec(session.id, ExecRequest(command="wait", exec_id="e"))
    assert (await worker.get_exec(session.id, "e")).running
    assert (await worker.get_exec(session.id, "e", wait_s=0.02)).running
    assert await worker.kill_exec(session.id, "e") == 1
    status = await worker.get_exec(session.id, "e", wait_s=1)
    assert not status.running
    assert (status.result.session_id, status.result.generation) == (session.id, 1)
    assert (await worker.get_exec(session.id, "e")).result == status.result
    with pytest.raises(NotFound):
        await worker.get_exec(session.id, "never")


@pytest.mark.parametrize(
    "call",
    [
        lambda worker, it: worker.get_session(it),
        lambda worker, it: worker.execute(it, ExecRequest(command="x")),
        lambda worker, it: worker.attach_exec(it, "e"),
        lambda worker, it: worker.list_execs(it),
        lambda worker, it: worker.files(it).read_bytes("a"),
        lambda worker, it: worker.recreate_session(it),
        lambda worker, it: worker.delete_session(it),
    ],
)
async def test_session_that_never_was(scene: Scene, call) -> None:
    worker = await scene.start()
    with pytest.raises(SandlotError) as caught:
        await call(worker, "ses_nobody" * 1000)
    assert type(caught.value) is NotFound
    assert len(caught.value.message) < 200
