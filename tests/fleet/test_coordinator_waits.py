"""What a coordinator waits for, for how long, and what changes meanwhile."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from sandlot.domain.execution import ExecRequest
from sandlot.domain.session import CreateSession, SessionState
from sandlot.fleet.coordinator import worker_links
from sandlot.fleet.directory.contract import LostPlace, Place, PlacementRequest
from sandlot.testing.eventually import eventually
from tests.fleet.fakes import TIMINGS, Scene


async def test_a_worker_that_takes_no_new_sessions_is_not_silent(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is being emptied finishes what it has, however long that takes."""
    monkeypatch.setattr(worker_links, "WATCH_EVERY_S", 0.05)
    session = (await scene.coordinator.create_session(CreateSession())).session
    await scene.coordinator.operations.set_draining("w1", True)
    assert not (await scene.workers["w1"].health()).creates
    result = await scene.coordinator.execute(session.id, ExecRequest("sleep 0.6; echo done"))
    assert result.stdout == b"done\n"


async def test_pieces_of_a_file_may_be_read_by_several_tasks(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the server does. Whoever began is not cancelled for what another one waits for."""
    monkeypatch.setattr(worker_links, "WATCH_EVERY_S", 0.02)

    async def silent(_: Any) -> bool:
        return False

    monkeypatch.setattr(worker_links.WorkerLink, "answers", silent)
    session = (await scene.coordinator.create_session(CreateSession())).session
    files = scene.coordinator.files(session.id)
    content = bytes(range(256)) * 4096
    await scene.workers["w1"].files(session.id).write("/workspace/large", content)
    pieces = files.read("/workspace/large")
    first = await anext(pieces)
    await asyncio.sleep(0.2)

    async def rest() -> bytes:
        return b"".join([piece async for piece in pieces])

    assert first + await asyncio.create_task(rest()) == content


async def test_a_thread_whose_lost_session_is_deleted_meanwhile_begins_anew(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = (await scene.coordinator.create_session(CreateSession(thread="t"))).session
    await scene.pass_time(TIMINGS.lease_s + TIMINGS.lost_after_s + 1, silent=("w1",))
    place = scene.directory.place

    async def deleted_after(want: PlacementRequest) -> Place | LostPlace:
        found = await place(want)
        if isinstance(found, LostPlace):
            await scene.another().delete_session(before.id)
        return found

    monkeypatch.setattr(scene.directory, "place", deleted_after)
    opened = await scene.coordinator.create_session(CreateSession(thread="t", recreate_lost=True))
    assert opened.created
    assert opened.session.id != before.id
    assert (opened.session.generation, opened.session.state) == (1, SessionState.ACTIVE)


async def test_a_coordinator_that_stops_waits_for_its_creates(scene: Scene) -> None:
    worker = scene.workers["w1"]
    worker.lets_create.clear()
    creating = asyncio.create_task(scene.coordinator.create_session(CreateSession()))
    await eventually(lambda: worker.assignments)
    stopping = asyncio.create_task(scene.coordinator.stop())
    await asyncio.sleep(0.3)
    assert not stopping.done()
    assert (await scene.coordinator.health()).calls_under_way == 1
    worker.lets_create.set()
    assert (await creating).created
    await stopping
