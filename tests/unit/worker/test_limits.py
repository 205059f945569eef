"""S3, R8: what a session may ask for is bounded, all of it together too, and limits are never weaker."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.unit.worker.conftest import Scene

from sandlot.domain.capacity.limits import DEFAULT_CEILINGS, MIB, LimitChange, Limits
from sandlot.domain.capacity.machine import Machine, Overcommit
from sandlot.domain.errors import InvalidRequest, SandboxLost, Unavailable
from sandlot.domain.execution import ExecRequest
from sandlot.domain.session import CreateSession, SessionState
from sandlot.testing.eventually import eventually

# But for a quarter, which the rest of the machine needs, and half as much again: memory for four.
SMALL = Machine(memory_bytes=2048 * MIB, cpus=2, pids=2048)


@pytest.mark.parametrize(
    "change",
    [
        LimitChange(memory_bytes=1024 * 1024 * MIB),
        LimitChange(cpus=1024.0),
        LimitChange(pids=65_536),
        LimitChange(tmp_bytes=8 * 1024 * MIB),
        LimitChange(shm_bytes=8 * 1024 * MIB),
        LimitChange(open_files=1_000_000),
    ],
    ids=repr,
)
async def test_s3_more_than_the_ceiling_is_refused(scene: Scene, change: LimitChange) -> None:
    worker = await scene.start()
    with pytest.raises(InvalidRequest, match="exceeds the maximum") as caught:
        await worker.create_session(CreateSession(limits=change))
    assert not caught.value.retryable
    assert scene.engine.creating.calls == 0


async def test_s3_an_environment_has_ceilings_of_its_own(scene: Scene) -> None:
    ceilings = Limits(memory_bytes=600 * MIB)
    worker = await scene.start(recipe={"ceilings": ceilings})
    opened = await worker.create_session(CreateSession(limits=LimitChange(memory_bytes=600 * MIB)))
    assert opened.session.limits.memory_bytes == 600 * MIB
    with pytest.raises(InvalidRequest, match="maximum of 629145600"):
        await worker.create_session(CreateSession(limits=LimitChange(memory_bytes=601 * MIB)))


async def test_s3_ceilings_do_not_bind_what_an_environment_has_itself(scene: Scene) -> None:
    worker = await scene.start(recipe={"ceilings": Limits(memory_bytes=64 * MIB)})
    opened = await worker.create_session(CreateSession(limits=LimitChange(memory_bytes=512 * MIB)))
    assert opened.session.limits.memory_bytes == 512 * MIB


@pytest.mark.parametrize(
    ("machine", "name"),
    [
        (Machine(memory_bytes=256 * MIB, cpus=2, pids=2048), "memory_bytes"),
        (Machine(memory_bytes=2048 * MIB, cpus=2, pids=128), "pids"),
        (Machine(memory_bytes=2048 * MIB, cpus=1, pids=2048), "cpus"),
    ],
)
async def test_s3_more_than_the_machine_has_is_for_another_machine(
    scene: Scene, machine: Machine, name: str
) -> None:
    worker = await scene.start(machine=machine, overcommit=Overcommit(100, 100))
    with pytest.raises(Unavailable) as caught:
        await worker.create_session(CreateSession(limits=LimitChange(cpus=2.0)))
    assert (caught.value.details["limit"], caught.value.retryable) == (name, False)


async def test_s3_limits_add_up_to_no_more_than_the_machine_may_promise(scene: Scene) -> None:
    worker = await scene.start(machine=SMALL)
    sessions = [(await worker.create_session(CreateSession())).session for _ in range(4)]  # 4 of 512 MiB
    assert worker.room()["base"] == (0, 0)
    with pytest.raises(Unavailable, match="no capacity") as caught:
        await worker.create_session(CreateSession())
    assert (caught.value.details["reason"], caught.value.retryable) == ("capacity", True)
    await worker.delete_session(sessions[0].id)
    assert worker.room()["base"] == (0, 1)
    await worker.create_session(CreateSession())


async def test_s3_creates_at_once_do_not_promise_the_same_room_twice(scene: Scene) -> None:
    worker = await scene.start(machine=SMALL)
    scene.engine.creating.delay_s = 0.02
    answers = await asyncio.gather(
        *(worker.create_session(CreateSession()) for _ in range(10)), return_exceptions=True
    )
    refused = [answer for answer in answers if isinstance(answer, Unavailable)]
    assert len(refused) == 6
    assert len(scene.engine.sandboxes) == 4


async def test_s3_a_recreate_is_admitted_as_a_create_is(scene: Scene) -> None:
    worker = await scene.start(machine=SMALL)
    lost = (await worker.create_session(CreateSession())).session
    scene.engine.sandboxes[lost.sandbox_id].die()
    await eventually(lambda: lost.sandbox_id in scene.engine.destroyed)
    for _ in range(4):
        await worker.create_session(CreateSession())
    with pytest.raises(Unavailable, match="no capacity"):
        await worker.recreate_session(lost.id)
    assert (await worker.get_session(lost.id)).state is SessionState.LOST


def test_s3_defaults_are_far_below_what_a_limit_can_be() -> None:
    assert DEFAULT_CEILINGS.memory_bytes == 4096 * MIB
    assert DEFAULT_CEILINGS.pids == 4096


# --- R8 ---------------------------------------------------------------------------------------


async def test_r8_unexpected_failure_to_set_limits_loses_the_sandbox(scene: Scene) -> None:
    worker = await scene.start()

    async def broken(*_: Any) -> None:
        raise KeyError("HostConfig")

    worker._provider.update_limits = broken
    session = (await worker.create_session(CreateSession(limits=LimitChange(pids=64)))).session
    with pytest.raises(SandboxLost, match="limits could not be set"):
        await worker.execute(session.id, ExecRequest(command="x"))


async def test_r8_call_that_waits_for_limits_is_not_let_in_when_the_worker_closes(scene: Scene) -> None:
    worker = await scene.start()
    scene.engine.updating.hold()
    session = (await worker.create_session(CreateSession(limits=LimitChange(pids=64)))).session
    running = asyncio.create_task(worker.execute(session.id, ExecRequest(command="x", exec_id="e")))
    await asyncio.sleep(0.02)
    await worker.close()
    with pytest.raises(Exception, match="Retry"):
        await running
    assert not scene.engine.sandboxes[session.sandbox_id].execs
