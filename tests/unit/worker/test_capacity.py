"""What a worker offers to its fleet, by what its machine has left."""

from __future__ import annotations

import asyncio

import pytest
from tests.unit.worker.conftest import Scene

from sandlot.domain.capacity.limits import LimitChange
from sandlot.domain.capacity.machine import Machine, Overcommit, Resources
from sandlot.domain.errors import EngineTimeout, InvalidRequest, SandlotError, Unavailable
from sandlot.domain.service import Opened
from sandlot.domain.session import CreateSession
from sandlot.wiring.machine import this_machine

GIB = 1024**3

# Half a core and 512 MiB for each: memory for 6, cores for 8.
SMALL = {
    "machine": Machine(memory_bytes=4 * GIB, cpus=2, pids=100_000),
    "overcommit": Overcommit(memory=1.0, cpus=2.0),
}


async def test_a_machine_takes_as_many_as_fit(scene: Scene) -> None:
    """O9: by default 1,000 sessions were let in, where some dozens fit."""
    worker = await scene.start(**SMALL)
    assert worker.room()["base"][1] == 6
    held = [(await worker.create_session(CreateSession())).session for _ in range(4)]
    assert worker.room()["base"][1] == 2
    with pytest.raises(Unavailable, match=r"2\.0 of 3\.0 GiB of memory.*SANDLOT_OVERCOMMIT_MEMORY") as full:
        await worker.create_session(CreateSession(limits=LimitChange(memory_bytes=2 * GIB)))
    assert full.value.details["reason"] == "capacity"
    assert full.value.retryable
    large = (await worker.create_session(CreateSession(limits=LimitChange(memory_bytes=GIB)))).session
    assert worker.room()["base"][1] == 0
    with pytest.raises(Unavailable, match="no capacity"):
        await worker.create_session(CreateSession())
    await worker.delete_session(large.id)
    await worker.delete_session(held[0].id)
    assert worker.room()["base"][1] == 3


async def test_a_full_machine_still_finds_what_it_has(scene: Scene) -> None:
    worker = await scene.start(**SMALL)
    mine = (await worker.create_session(CreateSession(thread="mine"))).session
    for _ in range(5):
        await worker.create_session(CreateSession())
    assert (await worker.create_session(CreateSession(thread="mine"))).session.id == mine.id
    with pytest.raises(Unavailable, match="no capacity"):
        await worker.create_session(CreateSession(thread="another"))


async def test_cores_are_shared_out_too(scene: Scene) -> None:
    worker = await scene.start(**SMALL)
    await worker.create_session(CreateSession(limits=LimitChange(cpus=2.0)))
    await worker.create_session(CreateSession(limits=LimitChange(cpus=1.0)))
    assert worker.room()["base"][1] == 2
    with pytest.raises(Unavailable, match=r"3 of 4 cores.*needs 2.*SANDLOT_OVERCOMMIT_CPUS") as full:
        await worker.create_session(CreateSession(limits=LimitChange(cpus=2.0)))
    assert (full.value.details["limit"], full.value.retryable) == ("cpus", True)


async def test_what_would_not_fit_on_the_empty_machine_is_not_to_be_tried_again(scene: Scene) -> None:
    worker = await scene.start(**SMALL)
    with pytest.raises(Unavailable, match="no capacity") as full:
        await worker.create_session(CreateSession(limits=LimitChange(memory_bytes=4 * GIB)))
    assert (full.value.retryable, full.value.retry_after_s) == (False, None)


async def test_what_is_given_is_reported(scene: Scene) -> None:
    worker = await scene.start(**SMALL)
    await worker.create_session(CreateSession())
    use = worker.condition().use
    assert use is not None
    assert (use.total.memory_bytes, use.total.cpus) == (3 * GIB, 4.0)
    assert use.given == Resources(GIB // 2, 0.5, 256)
    assert use.disk_free_bytes


async def test_those_that_are_being_opened_count(scene: Scene) -> None:
    """However many come at once, no more are let in than fit; and one that failed takes nothing with it."""
    worker = await scene.start(**SMALL, queue_timeout_s=1.0)
    answers = await asyncio.gather(
        *(worker.create_session(CreateSession()) for _ in range(20)), return_exceptions=True
    )
    assert sum(isinstance(answer, Opened) for answer in answers) == 6
    assert sum(isinstance(answer, Unavailable) for answer in answers) == 14
    for answer in answers:
        if isinstance(answer, Opened):
            await worker.delete_session(answer.session.id)
    scene.engine.creating.error = EngineTimeout("slow")
    with pytest.raises(SandlotError):
        await worker.create_session(CreateSession())
    use = worker.condition().use
    assert use is not None
    assert use.given == Resources()


async def test_an_environment_that_there_is_not_is_told_as_such(scene: Scene) -> None:
    worker = await scene.start(**SMALL)
    with pytest.raises(InvalidRequest, match="Unknown environment"):
        await worker.create_session(CreateSession(environment="none"))


def test_this_machine() -> None:
    machine = this_machine()
    assert machine.memory_bytes > GIB // 4
    assert machine.cpus >= 1
    assert machine.pids >= 1000
