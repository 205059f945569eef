"""Snapshots through connections that break: what is sent twice, and what is not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from sandlot import AsyncClient
from sandlot.client.http import HttpService
from sandlot.domain.errors import LinkInterrupted, Unsupported
from sandlot.domain.session import SessionState
from sandlot.domain.workspaces.snapshots import RestoreSnapshot, TakeSnapshot

Cutting = Callable[[Callable[[int], int | None]], Any]


async def new_session(server: Any) -> str:
    async with AsyncClient(server.url) as client:
        return (await client.create()).id


async def count(server: Any, session: str) -> int:
    return len((await server.fake.list_snapshots(session_id=session)).snapshots)


async def test_a_snapshot_is_not_taken_twice(server: Any, cutting: Cutting) -> None:
    """The caller reads that it may have been taken, and looks."""
    session = await new_session(server)
    async with cutting(lambda n: 1 if n == 0 else None) as cut:
        with pytest.raises(LinkInterrupted) as broken:
            await cut.service.take_snapshot(session, TakeSnapshot())
    assert broken.value.may_have_executed
    assert await count(server, session) == 1


async def test_the_snapshot_of_a_step_is_the_same_twice(server: Any, cutting: Cutting) -> None:
    session = await new_session(server)
    await server.fake.restore_snapshot(session, RestoreSnapshot(step="s1"))
    async with cutting(lambda n: 1 if n == 0 else None) as cut:
        taken = await cut.service.take_snapshot(session, TakeSnapshot(step="s1"))
        assert cut.proxy.cut == 1
    assert [each.id for each in (await server.fake.list_snapshots(session_id=session)).snapshots] == [
        taken.id
    ]


async def test_what_has_the_same_effect_twice_is_sent_again(server: Any, cutting: Cutting) -> None:
    session = await new_session(server)
    taken = await server.fake.take_snapshot(session, TakeSnapshot())
    for call in (
        lambda service: service.restore_snapshot(session, RestoreSnapshot(taken.id)),
        lambda service: service.hibernate_session(session),
        lambda service: service.list_snapshots(session_id=session),
        lambda service: service.compare_snapshot(taken.id),
        lambda service: service.delete_snapshot(taken.id),
    ):
        async with cutting(lambda n: 1 if n == 0 else None) as cut:
            await call(cut.service)
            assert cut.proxy.cut == 1
    assert await count(server, session) == 0


async def test_a_restore_and_a_hibernation_are_told_at_once(server: Any) -> None:
    async with AsyncClient(server.url) as client:
        service = client._service
        session = (await client.create()).id
        taken = await service.take_snapshot(session, TakeSnapshot(name="n"))
        restored = await service.restore_snapshot(session, RestoreSnapshot(taken.id))
        assert (restored.snapshot, restored.session.generation) == (taken.id, 2)
        assert (await service.hibernate_session(session)).state is SessionState.HIBERNATED


async def test_an_older_server_has_no_snapshots() -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 404 No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(refuse, "127.0.0.1", 0)
    service = HttpService(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    try:
        with pytest.raises(Unsupported, match="older version"):
            await service.list_snapshots()
    finally:
        await service.close()
        server.close()
        await server.wait_closed()
