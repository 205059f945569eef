"""Stopping: no new sessions, calls under way are let finish, and nothing hangs or is left running."""

from __future__ import annotations

import asyncio
import time

import pytest
from tests.unit.worker.conftest import Scene, full_disk

from sandlot.domain.capacity.pool import PoolPolicy
from sandlot.domain.errors import EngineTimeout, LinkInterrupted, Unavailable
from sandlot.domain.execution import ExecRequest
from sandlot.domain.session import CreateSession
from sandlot.testing.eventually import eventually
from sandlot.worker import host


async def test_stopping_takes_no_new_sessions_and_lets_the_others_be_used(scene: Scene) -> None:
    worker = await scene.start()
    session = (await worker.create_session(CreateSession())).session
    await worker.stop()
    with pytest.raises(Unavailable) as caught:
        await worker.create_session(CreateSession())
    assert caught.value.details["reason"] == "stopping"
    assert caught.value.retry_after_s
    assert (await worker.execute(session.id, ExecRequest(command="x"))).exit_code == 0
    health = await worker.health()
    assert not health.ready
    assert "stopping" in health.problems


async def test_worker_that_is_not_open_takes_nothing(scene: Scene) -> None:
    worker = scene.worker()
    with pytest.raises(Unavailable):
        await worker.create_session(CreateSession())
    assert not (await worker.health()).ready


async def test_stop_waits_for_calls_under_way(scene: Scene) -> None:
    worker = await scene.start()
    session = (await worker.create_session(CreateSession())).session
    running = asyncio.create_task(worker.execute(session.id, ExecRequest(command="sleep 0.1")))
    await asyncio.sleep(0.01)
    await worker.stop()
    await asyncio.sleep(0)
    assert running.done()


async def test_stop_does_not_wait_for_ever(scene: Scene) -> None:
    worker = await scene.start(drain_timeout_s=0.1)
    session = (await worker.create_session(CreateSession())).session
    reading = worker.files(session.id).read("f")
    await anext(reading)
    began = time.monotonic()
    await worker.stop()
    assert 0.1 <= time.monotonic() - began < 10
    await reading.aclose()


async def test_o2_stop_does_not_wait_for_commands_that_go_on_anyway(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "EXECS_STOP_S", 0.1)
    worker = await scene.start(drain_timeout_s=30)
    session = (await worker.create_session(CreateSession())).session
    running = asyncio.create_task(worker.execute(session.id, ExecRequest(command="wait", exec_id="e")))
    execution = await worker.start_exec(session.id, ExecRequest(command="wait", exec_id="f"))
    events = execution.events()
    await anext(events)
    await eventually(lambda: len(scene.engine.sandboxes[session.sandbox_id].execs) == 2)
    began = time.monotonic()
    await worker.stop()
    assert 0.1 <= time.monotonic() - began < 10
    scene.engine.sandboxes[session.sandbox_id].execs["e"].done.set()
    assert (await running).exit_code == 0
    await events.aclose()


async def test_o2_stop_waits_for_transfers_and_creates(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "EXECS_STOP_S", 0.0)
    worker = await scene.start(drain_timeout_s=30)
    session = (await worker.create_session(CreateSession())).session
    reading = worker.files(session.id).read("f")
    await anext(reading)
    scene.engine.creating.hold()
    creating = asyncio.create_task(worker.create_session(CreateSession()))
    await eventually(lambda: scene.engine.creating.at_once == 1)
    stopping = asyncio.create_task(worker.stop())
    await asyncio.sleep(0.2)
    assert not stopping.done()
    await reading.aclose()
    await asyncio.sleep(0.2)
    assert not stopping.done()
    scene.engine.creating.release()
    await asyncio.wait_for(stopping, 10)
    assert (await creating).created


async def test_o2_a_thread_that_is_here_is_found_while_the_worker_stops(scene: Scene) -> None:
    worker = await scene.start()
    session = (await worker.create_session(CreateSession(thread="t"))).session
    await worker.stop()
    found = await worker.create_session(CreateSession(thread="t"))
    assert (found.session.id, found.created) == (session.id, False)
    run = await worker.execute_in_thread(CreateSession(thread="t"), ExecRequest(command="x"))
    assert run.result.exit_code == 0
    with pytest.raises(Unavailable, match="shutting down"):
        await worker.create_session(CreateSession(thread="another"))


async def test_close_keeps_the_sessions_sandboxes_and_no_others(scene: Scene) -> None:
    worker = await scene.start(pool=PoolPolicy(size=3, min=3))
    session = (await worker.create_session(CreateSession())).session
    await eventually(lambda: len(scene.engine.sandboxes) == 4)
    await worker.close()
    assert set(scene.engine.sandboxes) == {session.sandbox_id}
    await worker.close()  # twice is once


async def test_close_during_creates_leaves_whole_sessions_or_nothing(scene: Scene) -> None:
    worker = await scene.start(create_concurrency=2)
    scene.engine.creating.delay_s = 0.01
    requests = [CreateSession(thread=f"t-{n}" if n % 2 else None) for n in range(12)]
    creating = [asyncio.create_task(worker.create_session(request)) for request in requests]
    await asyncio.wait(creating, return_when=asyncio.FIRST_COMPLETED)  # two at a time: most are still to come
    await worker.close()
    answers = await asyncio.gather(*creating, return_exceptions=True)
    kept = set()
    for answer in answers:
        if isinstance(answer, BaseException):
            assert isinstance(answer, Unavailable), repr(answer)
            assert (answer.details["reason"], answer.may_have_executed) == ("stopping", False)
        else:
            kept.add(answer.session.sandbox_id)
    assert kept
    assert len(kept) < len(requests)
    assert set(scene.engine.sandboxes) == kept
    scene.lives.clear()
    later = await scene.start()
    assert {session.sandbox_id for session in (await later.list_sessions(limit=100)).sessions} == kept


async def test_recreate_on_a_closing_worker_does_not_hang(scene: Scene) -> None:
    worker = await scene.start()
    session = (await worker.create_session(CreateSession())).session
    scene.engine.sandboxes[session.sandbox_id].die()
    await eventually(lambda: session.sandbox_id in scene.engine.destroyed)
    scene.engine.creating.hold()
    recreating = asyncio.create_task(worker.recreate_session(session.id))
    await asyncio.sleep(0.02)
    closing = asyncio.create_task(worker.close())
    with pytest.raises(Unavailable, match="shutting down"):
        await asyncio.wait_for(recreating, 20)
    scene.engine.creating.release()
    await closing


async def test_call_that_waits_for_an_adoption_is_told_when_the_worker_closes(scene: Scene) -> None:
    worker = await scene.start()
    session = (await worker.create_session(CreateSession())).session
    scene.engine.adopting.hold()
    worker = await scene.restart(worker)
    running = asyncio.create_task(worker.execute(session.id, ExecRequest(command="x")))
    await asyncio.sleep(0.02)
    await worker.close()
    with pytest.raises(LinkInterrupted, match="being prepared") as caught:
        await running
    assert caught.value.retryable  # not that the sandbox is lost: it is not
    assert not caught.value.may_have_executed
    scene.engine.adopting.release()
    scene.lives.clear()
    later = await scene.start()
    assert (await later.execute(session.id, ExecRequest(command="x"))).generation == 1


async def test_full_disk_keeps_nobody_from_stopping(scene: Scene) -> None:
    worker = await scene.start()
    session = (await worker.create_session(CreateSession())).session
    await worker.execute(session.id, ExecRequest(command="x"))  # its activity is to be written
    with full_disk():
        await worker.close()
    assert worker._provider.closed


async def test_engine_that_fails_keeps_nobody_from_stopping(scene: Scene) -> None:
    unheard: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unheard.append(context))
    worker = await scene.start(pool=PoolPolicy(size=2, min=2))
    await eventually(lambda: len(scene.engine.sandboxes) == 2)
    warm = set(scene.engine.sandboxes)
    scene.engine.destroying.error = EngineTimeout("the engine hangs")
    await worker.close()
    assert set(scene.engine.sandboxes) == warm
    scene.engine.destroying.error = None
    scene.lives.clear()
    await scene.start()
    await eventually(lambda: not scene.engine.sandboxes)  # on record, and so finished by the next life
    await asyncio.sleep(0)
    assert unheard == []


async def test_program_that_goes_takes_its_sessions_with_it_and_no_others(scene: Scene) -> None:
    worker = await scene.start()
    mine, other = [(await worker.create_session(CreateSession())).session for _ in range(2)]
    await worker.delete_sessions({mine.id})
    assert set(scene.engine.sandboxes) == {other.sandbox_id}
    assert [session.id for session in (await worker.list_sessions()).sessions] == [other.id]


async def test_one_that_cannot_be_removed_keeps_no_other(scene: Scene) -> None:
    worker = await scene.start()
    sessions = [(await worker.create_session(CreateSession())).session for _ in range(3)]
    scene.engine.destroying.error = EngineTimeout("the engine hangs")
    await worker.delete_sessions({session.id for session in sessions})
    assert (await worker.list_sessions()).sessions == ()


async def test_health_counts(scene: Scene) -> None:
    worker = await scene.start(worker_id="w-7", pool=PoolPolicy(size=2, min=1))
    await eventually(lambda: worker.room()["base"][0] == 2)
    session = (await worker.create_session(CreateSession())).session
    running = asyncio.create_task(worker.execute(session.id, ExecRequest(command="wait", exec_id="e")))
    execs = scene.engine.sandboxes[session.sandbox_id].execs
    await eventually(lambda: execs)
    health = await worker.health()
    assert (health.ready, health.worker_id, health.problems) == (True, "w-7", ())
    assert (health.active_sessions, health.calls_under_way) == (1, 1)
    assert health.pools["base"].hits == 1
    execs["e"].done.set()
    await running


async def test_health_tells_of_a_broken_environment(scene: Scene) -> None:
    worker = scene.worker(pool=PoolPolicy(size=1, min=1))
    scene.engine.creating.error = EngineTimeout("the engine did not answer")
    await worker.open()

    async def told() -> bool:
        return (await worker.health()).problems == ("environment base: the engine did not answer",)

    await eventually(told)
    assert (await worker.health()).ready  # sessions that there are can be used
