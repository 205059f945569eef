"""R5: creates whose limits need a sandbox of their own wait in line as all others do."""

from __future__ import annotations

import asyncio

import pytest
from tests.unit.worker.conftest import Scene

from sandlot.domain.capacity.limits import MIB, LimitChange
from sandlot.domain.environment import Environment
from sandlot.domain.errors import EngineProblem, Unavailable
from sandlot.domain.session import CreateSession
from sandlot.testing.eventually import eventually
from sandlot.worker.options import WorkerOptions
from sandlot.worker.pool.one_off import OneOffSandboxes

OWN = CreateSession(limits=LimitChange(shm_bytes=8 * MIB))
ENVIRONMENT = Environment(name="base", image="sandlot/base")


async def test_r5_only_so_many_wait(scene: Scene) -> None:
    worker = await scene.start(create_concurrency=1, max_waiting=2)
    scene.engine.creating.hold()
    creating = [asyncio.create_task(worker.create_session(OWN)) for _ in range(3)]  # one is made, two wait
    await asyncio.sleep(0.02)
    with pytest.raises(Unavailable, match="Too many") as caught:
        await worker.create_session(OWN)
    assert (caught.value.details["reason"], caught.value.may_have_executed) == ("queue", False)
    assert caught.value.retry_after_s
    scene.engine.creating.release()
    assert len({opened.session.id for opened in await asyncio.gather(*creating)}) == 3
    assert scene.engine.creating.most_at_once == 1


async def test_r5_tenants_take_turns() -> None:
    order: list[str] = []
    gate = asyncio.Event()

    async def make(environment: Environment, workspace: str | None) -> object:
        await gate.wait()
        return object()

    orders = OneOffSandboxes(WorkerOptions(create_concurrency=1), make=make, slots=asyncio.Semaphore(1))

    async def ask(tenant: str) -> None:
        await orders.claim(tenant, ENVIRONMENT)
        order.append(tenant)

    asking = [asyncio.create_task(ask("loud")) for _ in range(10)]
    await asyncio.sleep(0)
    asking.append(asyncio.create_task(ask("quiet")))
    await asyncio.sleep(0)
    gate.set()
    await asyncio.gather(*asking)
    assert order.index("quiet") <= 2


async def test_r5_the_line_moves_on_after_failures_and_those_who_left(scene: Scene) -> None:
    worker = await scene.start(create_concurrency=1, queue_timeout_s=0.2)
    scene.engine.creating.hold()
    late = [asyncio.create_task(worker.create_session(OWN)) for _ in range(3)]
    answers = await asyncio.gather(*late, return_exceptions=True)
    assert all(isinstance(answer, Unavailable) for answer in answers)
    scene.engine.creating.release()
    scene.engine.creating.error = EngineProblem("no", retryable=True)
    with pytest.raises(Unavailable, match="for this session"):
        await worker.create_session(OWN)
    scene.engine.creating.error = None
    await worker.create_session(OWN)


async def test_r5_who_waits_is_told_when_the_worker_closes(scene: Scene) -> None:
    worker = await scene.start(create_concurrency=1)
    scene.engine.creating.hold()
    first, second = (asyncio.create_task(worker.create_session(OWN)) for _ in range(2))
    await eventually(lambda: scene.engine.creating.at_once == 1)
    closing = asyncio.create_task(worker.close())
    with pytest.raises(Unavailable, match="shutting down"):
        await asyncio.wait_for(second, 10)
    scene.engine.creating.release()
    await first
    await closing
