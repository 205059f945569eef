"""Opening sessions: one per thread however many ask, one per key, and nothing left of what went wrong."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from tests.unit.worker.conftest import OwnWorker, Scene, full_disk

from sandlot.domain.capacity.limits import MIB, LimitChange
from sandlot.domain.capacity.pool import PoolPolicy
from sandlot.domain.errors import (
    EngineTimeout,
    IdempotencyMismatch,
    ImageMissing,
    InvalidRequest,
    LinkInterrupted,
    SandboxLost,
    SessionEnded,
    Unavailable,
)
from sandlot.domain.execution import ExecRequest
from sandlot.domain.network.variables import with_proxy
from sandlot.domain.session import NEVER, CreateSession, SessionChange, SessionState
from sandlot.testing.eventually import eventually

THREAD = CreateSession(thread="t-1")


async def test_session_is_what_was_asked_for(scene: Scene) -> None:
    worker = await scene.start(recipe={"idle_timeout_s": 100.0, "lifetime_s": 200.0})
    opened = await worker.create_session(
        CreateSession(thread="t-1", env={"A": "1"}, lifetime_s=50.0, metadata={"k": "v"})
    )
    session = opened.session
    assert opened.created
    assert (session.thread, session.environment, session.metadata) == ("t-1", "base", {"k": "v"})
    assert (session.idle_timeout_s, session.lifetime_s) == (100.0, 50.0)
    assert (session.state, session.generation) == (SessionState.ACTIVE, 1)
    sandbox = scene.engine.sandboxes[session.sandbox_id]
    assert sandbox.env == with_proxy({"A": "1"})
    assert sandbox.max_execs == 32
    assert await worker.get_session(session.id) == session


async def test_session_without_thread_is_always_a_new_one(scene: Scene) -> None:
    worker = await scene.start()
    opened = [await worker.create_session(CreateSession()) for _ in range(3)]
    assert len({one.session.id for one in opened}) == len({one.session.sandbox_id for one in opened}) == 3


@pytest.mark.parametrize(
    "request_",
    [
        CreateSession(environment="unknown"),
        CreateSession(lifetime_s=NEVER),
        CreateSession(limits=LimitChange(pids=1)),
    ],
    ids=["environment", "never", "limits"],
)
async def test_what_cannot_be_had_costs_no_sandbox(scene: Scene, request_: CreateSession) -> None:
    worker = await scene.start()
    with pytest.raises(InvalidRequest):
        await worker.create_session(request_)
    assert scene.engine.creating.calls == 0


async def test_never_where_it_is_allowed(scene: Scene) -> None:
    worker = await scene.start(allow_never=True)
    opened = await worker.create_session(CreateSession(lifetime_s=NEVER, idle_timeout_s=NEVER))
    assert opened.session.expires_at is None


# --- threads ----------------------------------------------------------------------------------


async def test_fifty_at_once_make_one(scene: Scene) -> None:
    worker = await scene.start()
    scene.engine.creating.delay_s = 0.02
    opened = await asyncio.gather(*(worker.create_session(THREAD) for _ in range(50)))
    assert len({one.session.id for one in opened}) == 1
    assert [one.created for one in opened].count(True) == 1
    assert len(scene.engine.made) == 1


async def test_r4_somebody_elses_bad_request_is_not_mine(scene: Scene) -> None:
    worker = await scene.start()
    bad = replace(THREAD, environment="unknown")
    refused, mine, also = await asyncio.gather(
        worker.create_session(bad),
        worker.create_session(THREAD),
        worker.create_session(THREAD),
        return_exceptions=True,
    )
    assert isinstance(refused, InvalidRequest)
    assert not isinstance(mine, BaseException)
    assert not isinstance(also, BaseException)
    assert mine.session.id == also.session.id
    assert (mine.created, also.created) == (True, False)


async def test_r4_waiting_for_somebody_elses_create_has_an_end(scene: Scene) -> None:
    worker = await scene.start(queue_timeout_s=0.1)
    scene.engine.creating.hold()
    first = asyncio.create_task(worker.create_session(THREAD))
    await asyncio.sleep(0.02)
    began = asyncio.get_running_loop().time()
    with pytest.raises(Unavailable) as caught:
        await worker.create_session(THREAD)
    assert asyncio.get_running_loop().time() - began < 5
    assert caught.value.retry_after_s
    scene.engine.creating.release()
    with pytest.raises(Unavailable):
        await first


async def test_failure_of_the_engine_is_told_to_all_and_costs_one_try(scene: Scene) -> None:
    worker = await scene.start()
    scene.engine.creating.delay_s = 0.02
    scene.engine.creating.error = ImageMissing("no image")
    answers = await asyncio.gather(
        *(worker.create_session(THREAD) for _ in range(10)), return_exceptions=True
    )
    assert {type(answer) for answer in answers} == {Unavailable}
    assert scene.engine.creating.calls == 1
    assert (await worker.list_sessions()).sessions == ()


async def test_first_who_asked_goes_away_and_the_others_get_it(scene: Scene) -> None:
    worker = await scene.start()
    scene.engine.creating.hold()
    first, second = (asyncio.create_task(worker.create_session(THREAD)) for _ in range(2))
    await asyncio.sleep(0.02)
    first.cancel()
    scene.engine.creating.release()
    opened = await second
    assert opened.session.sandbox_id == scene.engine.made[0]
    with pytest.raises(asyncio.CancelledError):
        await first


async def test_create_and_delete_at_once_end_in_one_order_or_the_other(scene: Scene) -> None:
    worker = await scene.start(pool=PoolPolicy(size=3, min=3))
    for _ in range(20):
        before = (await worker.create_session(THREAD)).session
        _, opened = await asyncio.gather(worker.delete_session(before.id), worker.create_session(THREAD))
        if opened.session.id == before.id:  # created (found), then deleted
            with pytest.raises(SessionEnded):
                await worker.get_session(before.id)
        else:  # deleted, then created
            assert opened.created
            result = await worker.execute(opened.session.id, ExecRequest(command="true"))
            assert result.session_id == opened.session.id
        live = (await worker.list_sessions(thread="t-1")).sessions
        assert len(live) <= 1


async def test_thread_of_a_deleted_session_gets_a_new_one(scene: Scene) -> None:
    worker = await scene.start()
    first = (await worker.create_session(THREAD)).session
    await worker.delete_session(first.id)
    second = await worker.create_session(THREAD)
    assert second.created
    assert second.session.id != first.id


async def test_execute_in_thread_opens_and_runs(scene: Scene) -> None:
    worker = await scene.start()
    runs = await asyncio.gather(
        *(worker.execute_in_thread(THREAD, ExecRequest(command=f"echo {n}")) for n in range(10))
    )
    assert len({run.opened.session.id for run in runs}) == 1
    assert {run.result.session_id for run in runs} == {runs[0].opened.session.id}
    assert [run.result.output for run in runs] == [f"echo {n}".encode() for n in range(10)]
    with pytest.raises(InvalidRequest, match="thread"):
        await worker.execute_in_thread(CreateSession(), ExecRequest(command="x"))


async def test_refused_exec_opens_no_session(scene: Scene) -> None:
    worker = await scene.start(max_exec_timeout_s=10)
    with pytest.raises(InvalidRequest, match="at most 10"):
        await worker.execute_in_thread(THREAD, ExecRequest(command="x", timeout_s=11))
    assert scene.engine.creating.calls == 0


# --- idempotency keys -------------------------------------------------------------------------

KEYED = CreateSession(idempotency_key="k-1", env={"A": "1", "B": "2"}, metadata={"m": "1"})


async def test_same_key_and_request_is_the_same_session(scene: Scene) -> None:
    worker = await scene.start()
    first = await worker.create_session(KEYED)
    again = await worker.create_session(replace(KEYED, env={"B": "2", "A": "1"}))  # order means nothing
    assert (first.created, again.created) == (True, False)
    assert again.session.id == first.session.id
    assert len(scene.engine.made) == 1


async def test_same_key_in_flight_waits_for_it(scene: Scene) -> None:
    worker = await scene.start()
    scene.engine.creating.delay_s = 0.02
    opened = await asyncio.gather(*(worker.create_session(KEYED) for _ in range(10)))
    assert len({one.session.id for one in opened}) == 1
    assert len(scene.engine.made) == 1


OTHER_PAYLOADS = [
    replace(KEYED, env={"A": "2"}),
    replace(KEYED, metadata={}),
    replace(KEYED, thread="t-1"),
    replace(KEYED, lifetime_s=5.0),
    replace(KEYED, limits=LimitChange(pids=64)),
    replace(KEYED, recreate_lost=True),
    replace(KEYED, environment="base"),
]


@pytest.mark.parametrize("other", OTHER_PAYLOADS)
async def test_same_key_for_another_request_is_refused(scene: Scene, other: CreateSession) -> None:
    worker = await scene.start()
    await worker.create_session(KEYED)
    with pytest.raises(IdempotencyMismatch, match="k-1"):
        await worker.create_session(other)
    assert len(scene.engine.made) == 1


async def test_same_key_in_flight_for_another_thread_is_refused(scene: Scene) -> None:
    worker = await scene.start()
    scene.engine.creating.delay_s = 0.02
    answers = await asyncio.gather(
        *(worker.create_session(replace(KEYED, thread=thread)) for thread in ("t-1", "t-2")),
        return_exceptions=True,
    )
    assert answers[0].created
    assert isinstance(answers[1], IdempotencyMismatch)
    assert len(scene.engine.made) == 1


async def test_other_key_for_the_same_thread_in_flight_gets_the_threads_session(scene: Scene) -> None:
    worker = await scene.start()
    scene.engine.creating.delay_s = 0.02
    first, second = await asyncio.gather(
        worker.create_session(replace(THREAD, idempotency_key="k-1")),
        worker.create_session(replace(THREAD, idempotency_key="k-2", metadata={"other": "payload"})),
    )
    assert first.session.id == second.session.id
    assert (first.created, second.created) == (True, False)


async def test_key_of_an_ended_session_says_so(scene: Scene) -> None:
    worker = await scene.start()
    first = await worker.create_session(KEYED)
    await worker.delete_session(first.session.id)
    with pytest.raises(SessionEnded, match="deleted"):
        await worker.create_session(KEYED)


async def test_key_of_a_create_that_failed_is_free(scene: Scene) -> None:
    worker = await scene.start(queue_timeout_s=0.05)
    scene.engine.creating.hold()
    with pytest.raises(Unavailable):
        await worker.create_session(KEYED)
    scene.engine.creating.release()
    assert (await worker.create_session(KEYED)).created


# --- bounds and failures ----------------------------------------------------------------------


async def test_worker_holds_so_many_and_no_more(scene: Scene) -> None:
    worker = await scene.start(max_sessions=3)
    scene.engine.creating.delay_s = 0.01
    answers = await asyncio.gather(
        *(worker.create_session(CreateSession()) for _ in range(5)), return_exceptions=True
    )
    refused = [answer for answer in answers if isinstance(answer, Unavailable)]
    assert len(refused) == 2
    assert {error.details["reason"] for error in refused} == {"capacity"}
    assert len((await worker.list_sessions()).sessions) == 3
    kept = next(answer for answer in answers if not isinstance(answer, Unavailable))
    await worker.delete_session(kept.session.id)
    assert (await worker.create_session(CreateSession())).created


@pytest.mark.parametrize("error", [SandboxLost("died"), LinkInterrupted("broke")], ids=lambda e: e.code)
async def test_sandbox_that_dies_while_it_is_bound_is_replaced(scene: Scene, error: Exception) -> None:
    worker = await scene.start(pool=PoolPolicy(size=2, min=0))
    await eventually(lambda: worker.room()["base"][0] == 2)
    dead = scene.engine.sandboxes[scene.engine.made[0]]
    dead.bind_error = error
    opened = await worker.create_session(THREAD)
    assert opened.session.sandbox_id == scene.engine.made[1]
    await eventually(lambda: dead.id in scene.engine.destroyed)
    assert (await worker.health()).pools["base"].misses["warm_died"] == 1


async def test_sandboxes_that_all_die_are_given_up_and_nothing_is_left(scene: Scene) -> None:
    worker = await scene.start(pool=PoolPolicy(size=6, min=0))
    await eventually(lambda: worker.room()["base"][0] == 6)
    for sandbox in list(scene.engine.sandboxes.values()):
        sandbox.bind_error = SandboxLost("died")
    with pytest.raises(Unavailable, match="in a row"):
        await worker.create_session(THREAD)
    await eventually(lambda: len(scene.engine.destroyed) == 5)
    assert await worker._store.sessions() == []
    assert (await worker.list_sessions()).sessions == ()


async def test_caller_that_goes_away_leaves_neither_session_nor_sandbox(scene: Scene) -> None:
    worker = await scene.start()
    scene.engine.binding.hold()
    creating = asyncio.create_task(worker.create_session(CreateSession()))
    await eventually(lambda: scene.engine.binding.at_once)
    creating.cancel()
    with pytest.raises(asyncio.CancelledError):
        await creating
    await eventually(lambda: not scene.engine.sandboxes)
    assert (await worker.list_sessions()).sessions == ()
    await eventually(lambda: nothing_on_record(worker))


async def nothing_on_record(worker: OwnWorker) -> bool:
    return not await worker._store.sessions() and not await worker._store.sandboxes()


async def test_full_disk_refuses_new_sessions_and_leaves_nothing(scene: Scene) -> None:
    worker = await scene.start(pool=PoolPolicy(size=1, min=0))
    await eventually(lambda: worker.room()["base"][0] == 1)
    with full_disk(), pytest.raises(Unavailable, match="disk"):
        await worker.create_session(CreateSession(metadata={"k": "v" * 15_000}))
    await eventually(lambda: not scene.engine.sandboxes or len(scene.engine.made) > 1)
    assert (await worker.list_sessions()).sessions == ()
    assert (await worker.create_session(CreateSession())).created


async def test_engine_that_makes_it_after_all_is_cleaned_up(scene: Scene) -> None:
    worker = await scene.start(queue_timeout_s=0.1, orphan_grace_s=0)
    scene.engine.creating.error = EngineTimeout("no answer within the deadline")
    with pytest.raises(Unavailable):
        await worker.create_session(THREAD)
    (record,) = await worker._store.sandboxes()
    scene.engine.put(record.id)  # it was made all the same
    await worker._sandboxes.sweep(0.0)
    assert record.id in scene.engine.destroyed
    assert await worker._store.sandboxes() == []


# --- limits -----------------------------------------------------------------------------------

SMALL = CreateSession(limits=LimitChange(memory_bytes=64 * MIB))


async def test_limits_are_set_before_the_first_call_and_create_does_not_wait_for_them(scene: Scene) -> None:
    worker = await scene.start()
    scene.engine.updating.hold()
    session = (await worker.create_session(SMALL)).session
    running = asyncio.create_task(worker.execute(session.id, ExecRequest(command="x")))
    await asyncio.sleep(0.03)
    sandbox = scene.engine.sandboxes[session.sandbox_id]
    assert sandbox.execs == {}
    scene.engine.updating.release()
    await running
    assert sandbox.limits.memory_bytes == session.limits.memory_bytes == 64 * MIB


async def test_limits_that_cannot_be_set_lose_the_sandbox(scene: Scene) -> None:
    worker = await scene.start()
    scene.engine.updating.error = EngineTimeout("the engine did not answer")
    session = (await worker.create_session(SMALL)).session
    with pytest.raises(SandboxLost, match="limits could not be set") as caught:
        await worker.execute(session.id, ExecRequest(command="x"))
    assert not caught.value.may_have_executed
    await eventually(lambda: scene.engine.made[0] in scene.engine.destroyed)  # the pool may have made another
    scene.engine.updating.error = None
    assert (await worker.recreate_session(session.id)).generation == 2
    assert (await worker.execute(session.id, ExecRequest(command="x"))).exit_code == 0


async def test_limits_that_are_fixed_when_made_get_a_sandbox_of_their_own(scene: Scene) -> None:
    worker = await scene.start(pool=PoolPolicy(size=1, min=1))
    await eventually(lambda: scene.engine.made)
    warm = scene.engine.made[0]
    opened = await worker.create_session(CreateSession(limits=LimitChange(shm_bytes=8 * MIB)))
    assert opened.session.sandbox_id != warm
    assert scene.engine.sandboxes[opened.session.sandbox_id].limits.shm_bytes == 8 * MIB
    assert scene.engine.updating.calls == 0
    assert (await worker.health()).pools["base"].misses == {"limits_fixed": 1}


async def test_limits_of_a_former_sandbox_do_not_let_calls_into_the_next_too_early(scene: Scene) -> None:
    worker = await scene.start()
    scene.engine.updating.hold()
    session = (await worker.create_session(SMALL)).session
    first = scene.engine.sandboxes[session.sandbox_id]
    await asyncio.sleep(0.01)
    scene.engine.updating._open, late = asyncio.Event(), scene.engine.updating._open
    first.die()
    await eventually(lambda: first.id in scene.engine.destroyed)
    second = scene.engine.sandboxes[(await worker.recreate_session(session.id)).sandbox_id]
    late.set()  # only now is it answered about the first
    await asyncio.sleep(0.01)
    running = asyncio.create_task(worker.execute(session.id, ExecRequest(command="x")))
    await asyncio.sleep(0.03)
    assert second.execs == {}
    scene.engine.updating.release()
    await running


async def test_change_of_a_session(scene: Scene) -> None:
    worker = await scene.start()
    session = (await worker.create_session(CreateSession(metadata={"k": "v"}))).session
    changed = await worker.update_session(session.id, SessionChange(lifetime_s=7.0))
    assert (changed.lifetime_s, changed.idle_timeout_s, changed.metadata) == (7.0, 1800.0, {"k": "v"})
    assert (await worker.update_session(session.id, SessionChange(metadata={}))).metadata == {}
    with pytest.raises(InvalidRequest, match="without an end"):
        await worker.update_session(session.id, SessionChange(lifetime_s=NEVER))


async def test_pages_have_every_session_once_and_oldest_first(scene: Scene) -> None:
    worker = await scene.start()
    ids = [(await worker.create_session(CreateSession(thread=f"t-{n}"))).session.id for n in range(7)]
    seen, after = [], None
    while True:
        page = await worker.list_sessions(after=after, limit=3)
        seen += [session.id for session in page.sessions]
        if (after := page.next) is None:
            break
    assert seen == ids
    assert [s.id for s in (await worker.list_sessions(thread="t-3")).sessions] == [ids[3]]
    for limit in (0, 1001):
        with pytest.raises(InvalidRequest):
            await worker.list_sessions(limit=limit)
