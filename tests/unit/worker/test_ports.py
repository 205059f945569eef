"""Connections to ports, and exposed ports, where the engine must be slow, silent or gone at the right moment."""

from __future__ import annotations

import asyncio

import pytest
from tests.unit.worker.conftest import Scene

from sandlot.domain.errors import (
    Busy,
    LinkInterrupted,
    NotFound,
    SandboxUnresponsive,
    SessionEnded,
)
from sandlot.domain.network.ports import MAX_CONNECTIONS, ExposePort
from sandlot.domain.session import CreateSession
from sandlot.testing.eventually import eventually
from sandlot.worker.sessions import ports

SECONDS = 20.0


async def test_exposed_ports_survive_a_restart_with_their_ids(scene: Scene) -> None:
    worker = await scene.start()
    session = (await worker.create_session(CreateSession())).session
    made = [
        (await worker.expose_port(session.id, ExposePort(port, public=port == 80))).exposure
        for port in (80, 8000)
    ]
    worker = await scene.restart(worker)
    assert list(await worker.list_exposed(session.id)) == made
    stream = await worker.connect(session.id, 8000, through=made[1].id)
    await stream.send(b"ping")
    assert await stream.receive() == b"ping"
    await stream.close()


async def test_ports_that_are_exposed_at_once_are_all_kept(scene: Scene) -> None:
    worker = await scene.start()
    session = (await worker.create_session(CreateSession())).session
    await asyncio.gather(*(worker.expose_port(session.id, ExposePort(port)) for port in range(8000, 8010)))
    assert [exposure.port for exposure in await worker.list_exposed(session.id)] == list(range(8000, 8010))


async def test_a_connection_that_nobody_uses_ends(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "IDLE_S", 0.2)
    worker = await scene.start()
    session = (await worker.create_session(CreateSession())).session
    stream = await worker.connect(session.id, 8000)
    async with asyncio.timeout(SECONDS):
        with pytest.raises(LinkInterrupted, match="nothing was sent"):
            await stream.receive()
    await stream.close()


async def test_connections_that_are_being_made_count_too(scene: Scene) -> None:
    worker = await scene.start()
    session = (await worker.create_session(CreateSession())).session
    assert session.sandbox_id is not None
    connecting = scene.engine.sandboxes[session.sandbox_id].connecting
    connecting.hold()
    waiting = [asyncio.create_task(worker.connect(session.id, 8000)) for _ in range(MAX_CONNECTIONS)]

    async def all_wait() -> bool:
        return connecting.at_once == MAX_CONNECTIONS

    await eventually(all_wait, SECONDS, "all wait")
    with pytest.raises(Busy):
        await worker.connect(session.id, 8000)
    for task in waiting[:10]:
        task.cancel()
    await asyncio.gather(*waiting[:10], return_exceptions=True)
    connecting.release()
    streams = await asyncio.gather(*waiting[10:])
    more = [await worker.connect(session.id, 8000) for _ in range(10)]
    with pytest.raises(Busy):
        await worker.connect(session.id, 8000)
    for stream in (*streams, *more):
        await stream.close()
    with pytest.raises(NotFound):
        await worker.connect(session.id, 1)
    await (await worker.connect(session.id, 8000)).close()


async def test_a_sandbox_that_does_not_answer(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "CONNECT_WITHIN_S", 0.2)
    worker = await scene.start()
    session = (await worker.create_session(CreateSession())).session
    assert session.sandbox_id is not None
    scene.engine.sandboxes[session.sandbox_id].awake.clear()
    with pytest.raises(SandboxUnresponsive):
        await worker.connect(session.id, 8000)


async def test_a_deleted_session_ends_its_connections_at_once(scene: Scene) -> None:
    worker = await scene.start()
    session = (await worker.create_session(CreateSession())).session
    stream = await worker.connect(session.id, 8000)
    reading = asyncio.create_task(stream.receive())
    await asyncio.sleep(0)
    await worker.delete_session(session.id)
    with pytest.raises(SessionEnded):
        await reading
    with pytest.raises(SessionEnded):
        await stream.send(b"late")
    await stream.close()
    with pytest.raises(NotFound):
        await worker.tenant_of(session.id)
