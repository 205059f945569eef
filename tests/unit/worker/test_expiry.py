"""A session whose time is over: ended, but never under what was accepted before (real loop, short timeouts)."""

from __future__ import annotations

import asyncio

import pytest
from tests.unit.worker.conftest import OwnWorker, Scene

from sandlot.domain.errors import EngineTimeout, LinkInterrupted, NotFound, SessionEnded
from sandlot.domain.execution import ExecRequest
from sandlot.domain.session import CreateSession, SessionChange
from sandlot.testing.eventually import eventually

pytestmark = pytest.mark.slow  # lifetimes, each in real time


async def ended(worker: OwnWorker, session_id: str) -> bool:
    try:
        await worker.get_session(session_id)
    except SessionEnded:
        return True
    return False


async def test_idle_session_ends_and_says_why(scene: Scene) -> None:
    worker = await scene.start()
    session = (await worker.create_session(CreateSession(idle_timeout_s=0.1))).session
    await eventually(lambda: ended(worker, session.id))
    with pytest.raises(SessionEnded, match="idle") as caught:
        await worker.execute(session.id, ExecRequest(command="x"))
    assert caught.value.details["reason"] == "idle"
    assert not caught.value.may_have_executed
    await eventually(lambda: session.sandbox_id in scene.engine.destroyed)


async def test_use_extends_the_idle_time_and_not_the_lifetime(scene: Scene) -> None:
    worker = await scene.start()
    # Used twenty times in each idle time: a pause of the machine is no idleness.
    request = CreateSession(idle_timeout_s=2.0, lifetime_s=4.2)
    session = (await worker.create_session(request)).session

    async def over() -> bool:
        await asyncio.sleep(0.02)
        try:
            await worker.execute(session.id, ExecRequest(command="x"))
        except SessionEnded as error:
            assert error.details["reason"] == "lifetime"  # more than twice its idle time has passed
            return True
        return False

    await eventually(over, 20)


async def test_looking_at_a_session_does_not_extend_it(scene: Scene) -> None:
    worker = await scene.start()
    session = (await worker.create_session(CreateSession(idle_timeout_s=0.1))).session
    await eventually(lambda: ended(worker, session.id))  # which looks all the time


@pytest.mark.parametrize("limit", ["idle_timeout_s", "lifetime_s"])
async def test_long_call_is_let_finish(scene: Scene, limit: str) -> None:
    worker = await scene.start()
    session = (await worker.create_session(CreateSession())).session
    running = asyncio.create_task(worker.execute(session.id, ExecRequest(command="wait", exec_id="e")))
    execs = scene.engine.sandboxes[session.sandbox_id].execs
    await eventually(lambda: execs)
    await worker.update_session(session.id, SessionChange(**{limit: 0.1}))
    await asyncio.sleep(0.3)
    assert not running.done()
    execs["e"].done.set()
    assert (await running).exit_code == 0
    await eventually(lambda: ended(worker, session.id))


async def test_call_that_is_no_exec_is_let_finish_too(scene: Scene) -> None:
    worker = await scene.start()
    session = (await worker.create_session(CreateSession())).session
    pieces = worker.files(session.id).read("a")
    assert await anext(pieces) == b"first"
    await worker.update_session(session.id, SessionChange(idle_timeout_s=0.1))
    await asyncio.sleep(0.25)
    assert [piece async for piece in pieces] == [b"second"]
    await eventually(lambda: ended(worker, session.id))


@pytest.mark.parametrize("limit", ["idle_timeout_s", "lifetime_s"])
async def test_exec_in_the_background_is_let_finish(scene: Scene, limit: str) -> None:
    worker = await scene.start()
    session = (await worker.create_session(CreateSession())).session
    execution = await worker.start_exec(session.id, ExecRequest(command="wait", exec_id="e"))
    await worker.update_session(session.id, SessionChange(**{limit: 0.1}))
    await asyncio.sleep(0.3)
    sandbox = scene.engine.sandboxes[session.sandbox_id]
    assert not sandbox.lost
    sandbox.execs["e"].done.set()
    assert (await execution.result()).exit_code == 0
    await eventually(lambda: ended(worker, session.id))


async def test_new_exec_is_refused_once_the_lifetime_is_over_though_another_runs(scene: Scene) -> None:
    worker = await scene.start()
    session = (await worker.create_session(CreateSession())).session
    await worker.start_exec(session.id, ExecRequest(command="wait", exec_id="e"))
    await worker.update_session(session.id, SessionChange(lifetime_s=0.05))
    await asyncio.sleep(0.1)
    with pytest.raises(SessionEnded, match="lifetime"):
        await worker.execute(session.id, ExecRequest(command="x"))
    assert (await worker.list_execs(session.id))[0].running  # but what runs can be seen, and ended
    await worker.kill_exec(session.id, "e")
    await eventually(lambda: ended(worker, session.id))


async def test_exec_at_the_edge_is_refused_before_it_starts_or_runs_to_its_end(scene: Scene) -> None:
    """Many sessions, each used around the moment at which it expires."""
    worker = await scene.start(create_concurrency=50)
    outcomes: list[tuple[str, int, int]] = []

    async def used_after(seconds: float) -> None:
        session = (await worker.create_session(CreateSession(idle_timeout_s=1.0))).session
        sandbox = scene.engine.sandboxes[session.sandbox_id]
        await asyncio.sleep(seconds)
        try:
            result = await worker.execute(session.id, ExecRequest(command="sleep 0.05"))
        except SessionEnded as error:
            outcomes.append(("refused", error.may_have_executed, len(sandbox.execs)))
        else:
            outcomes.append(("extended", result.exit_code, len(sandbox.execs)))

    edge = [0.97 + number * 0.001 for number in range(60)]
    await asyncio.gather(*(used_after(seconds) for seconds in (0.0, *edge, 1.6)))
    assert set(outcomes) == {("refused", False, 0), ("extended", 0, 1)}


async def test_call_waits_while_it_is_decided_and_follows_the_decision(scene: Scene) -> None:
    worker = await scene.start()
    scene.engine.asking.hold()
    session = (await worker.create_session(CreateSession(idle_timeout_s=0.05))).session
    await eventually(lambda: scene.engine.asking.at_once)
    running = asyncio.create_task(worker.execute(session.id, ExecRequest(command="x")))
    await asyncio.sleep(0.03)
    assert not running.done()
    scene.engine.asking.release()
    with pytest.raises(SessionEnded):
        await running


async def test_session_that_is_extended_while_it_is_decided_lives_on(scene: Scene) -> None:
    worker = await scene.start()
    scene.engine.asking.hold()
    session = (await worker.create_session(CreateSession(lifetime_s=0.05))).session
    await eventually(lambda: scene.engine.asking.at_once)
    await worker.update_session(session.id, SessionChange(lifetime_s=60.0))
    scene.engine.asking.release()
    await asyncio.sleep(0.1)
    assert (await worker.execute(session.id, ExecRequest(command="x"))).exit_code == 0


async def test_agent_that_does_not_say_what_runs_is_given_the_benefit_of_the_doubt(scene: Scene) -> None:
    worker = await scene.start()
    scene.engine.asking.error = LinkInterrupted("broken")
    session = (await worker.create_session(CreateSession(idle_timeout_s=0.05))).session
    await eventually(lambda: scene.engine.asking.calls >= 2)
    assert not await ended(worker, session.id)
    scene.engine.asking.error = None
    await eventually(lambda: ended(worker, session.id))


async def test_but_not_for_longer_than_anything_accepted_can_run(scene: Scene) -> None:
    worker = await scene.start(max_exec_timeout_s=0.2)
    session = (await worker.create_session(CreateSession(lifetime_s=0.05))).session
    scene.engine.asking.error = LinkInterrupted("broken")
    await eventually(lambda: ended(worker, session.id))


async def test_thread_whose_session_expired_gets_a_new_one(scene: Scene) -> None:
    worker = await scene.start()
    request = CreateSession(thread="t-1", idle_timeout_s=0.05)
    first = (await worker.create_session(request)).session
    await asyncio.sleep(0.06)
    following = CreateSession(thread="t-1")  # which does not expire while the others are being told of it
    opened = await asyncio.gather(*(worker.create_session(following) for _ in range(10)))
    assert len({one.session.id for one in opened}) == 1
    assert [one.created for one in opened].count(True) == 1
    assert opened[0].session.id != first.id


async def test_engine_that_fails_to_remove_the_expired_does_not_keep_the_thread(scene: Scene) -> None:
    worker = await scene.start()
    request = CreateSession(thread="t-1", idle_timeout_s=0.05)
    first = (await worker.create_session(request)).session
    scene.engine.destroying.error = EngineTimeout("the engine hangs")
    await asyncio.sleep(0.06)
    opened = await worker.create_session(request)
    assert opened.created
    scene.engine.destroying.error = None
    await worker._sandboxes.sweep(0.0)
    assert first.sandbox_id in scene.engine.destroyed


async def test_lost_session_expires_too(scene: Scene) -> None:
    worker = await scene.start()
    session = (await worker.create_session(CreateSession(idle_timeout_s=1.0))).session
    scene.engine.sandboxes[session.sandbox_id].die()
    await eventually(lambda: ended(worker, session.id))


async def test_ended_ones_are_forgotten_after_a_while(scene: Scene) -> None:
    worker = await scene.start(remember_ended_s=0.05)
    session = (await worker.create_session(CreateSession(idempotency_key="k"))).session
    await worker.delete_session(session.id)
    await asyncio.sleep(0.06)
    await worker._reaper._sweep()
    with pytest.raises(NotFound) as caught:
        await worker.get_session(session.id)
    assert type(caught.value) is NotFound
    assert await worker._store.sessions() == []
    assert (await worker.create_session(CreateSession(idempotency_key="k"))).created
