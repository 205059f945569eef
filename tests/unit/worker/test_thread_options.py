"""U2: a thread's session with other options than are asked for is not handed out in silence."""

from __future__ import annotations

import asyncio

import pytest
from tests.unit.worker.conftest import Scene

from sandlot.domain.errors import ThreadDiffers
from sandlot.domain.session import CreateSession, SessionState
from sandlot.testing.eventually import eventually

FIRST = CreateSession(thread="t", env={"TOKEN": "one"})
OTHER = CreateSession(thread="t", env={"TOKEN": "two"})
KEPT = CreateSession(thread="t", env={"TOKEN": "two"}, if_different="keep")


async def test_also_after_a_restart(scene: Scene) -> None:
    worker = await scene.start()
    session = (await worker.create_session(FIRST)).session
    for _ in range(2):
        with pytest.raises(ThreadDiffers, match="its variables differ in TOKEN"):
            await worker.create_session(OTHER)
        assert (await worker.create_session(FIRST)).session.id == session.id
        assert (await worker.create_session(KEPT)).session.id == session.id
        worker = await scene.restart(worker)


async def test_of_those_that_wait_for_the_same_only_who_asked_for_it_gets_it(scene: Scene) -> None:
    worker = await scene.start()
    scene.engine.creating.delay_s = 0.05
    first, same, other = await asyncio.gather(
        *(worker.create_session(request) for request in (FIRST, FIRST, OTHER)), return_exceptions=True
    )
    assert not isinstance(first, BaseException)
    assert not isinstance(same, BaseException)
    assert (first.created, same.created, same.session.id) == (True, False, first.session.id)
    assert isinstance(other, ThreadDiffers)


async def test_a_lost_one_is_not_made_anew_for_other_options(scene: Scene) -> None:
    worker = await scene.start()
    session = (await worker.create_session(FIRST)).session
    assert session.sandbox_id is not None
    scene.engine.sandboxes[session.sandbox_id].die("gone")

    async def is_lost() -> bool:
        return (await worker.get_session(session.id)).state is SessionState.LOST

    await eventually(is_lost)
    with pytest.raises(ThreadDiffers):
        await worker.create_session(CreateSession(thread="t", env={"TOKEN": "two"}, recreate_lost=True))
    assert (await worker.get_session(session.id)).generation == 1


async def test_variables_that_were_lost_with_their_worker_are_not_compared(scene: Scene) -> None:
    """Whoever asks again as at first must get the session, although nobody knows its variables any more."""
    worker = await scene.start()
    session = (await worker.create_session(FIRST)).session
    await worker.give_up({session.id})
    assert await worker.adopt_lost_session(session) is not None
    again = await worker.create_session(CreateSession(thread="t", env={"TOKEN": "one"}, recreate_lost=True))
    assert (again.session.id, again.session.generation) == (session.id, 2)
