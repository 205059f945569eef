"""Calls of a session go straight to its worker."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
import pytest_asyncio

from sandlot.client.async_client import AsyncClient
from sandlot.client.http import HttpService
from sandlot.domain.callers.principal import OWNER
from sandlot.domain.errors import (
    SessionEnded,
    Unauthorized,
)
from sandlot.domain.execution import ExecRequest, PtySize
from sandlot.domain.files import FileChange
from sandlot.domain.session import DEFAULT_ENVIRONMENT, CreateSession, SessionChange
from sandlot.testing.service_suite import ServiceHarness, ServiceSuite
from tests.fleet.straight_rig import API_KEY, Rig, pieces, rigged

# A run of a few cases proves nothing about the rest.
FEW_CALLS = 100


class TestStraight(ServiceSuite):
    """The whole contract on the way straight to the worker."""

    @pytest_asyncio.fixture(loop_scope="session", scope="class")
    @classmethod
    async def service_harness(cls) -> AsyncIterator[ServiceHarness]:
        async with rigged() as rig:
            rig.fake._max_execs = 12

            async def lose(session_id: str) -> None:
                rig.fake.lose(session_id)

            async def freeze(session_id: str) -> None:
                rig.fake.freeze(session_id)

            async def thaw(session_id: str) -> None:
                rig.fake.thaw(session_id)

            async with AsyncClient(service=rig.service) as client:
                harness = ServiceHarness(client, lose, 12, rig.service, short_s=0.4, measures_memory=False)
                abilities = rig.fake._snapshots.store.abilities
                yield replace(
                    harness,
                    freeze=freeze,
                    thaw=thaw,
                    serve_port=rig.fake.serve_port,
                    abilities=abilities,
                    coded=DEFAULT_ENVIRONMENT,
                )
            # The others are of sessions that were over, or lost and made anew by the case itself. How many
            # depends on which cases this process got: at least ten to one in all of them, so half of it here.
            for call in ("execute", "files"):
                straight, around = (side.calls.count(call) for side in (rig.worker, rig.coordinator))
                assert straight >= 5 * around or straight + around < FEW_CALLS, (call, straight, around)


# --- which way ----------------------------------------------------------------------------------


async def test_all_calls_of_a_session_go_straight(rig: Rig) -> None:
    session = await rig.session()
    service, files = rig.service, rig.service.files(session)
    await rig.run(session)
    request = ExecRequest(command="cat", stdin=True)
    attached = await service.start_exec(session, request)  # a stream of events, then a WebSocket
    await attached.write_stdin(b"through a socket")
    await attached.close_stdin()
    assert (await attached.result()).stdout == b"through a socket"
    streamed = await service.start_exec(session, ExecRequest(command="seq 3"))
    assert (await streamed.result()).stdout == b"1\n2\n3\n"
    terminal = ExecRequest(command="sleep 30", pty=PtySize(24, 80))
    held = await service.start_exec(session, terminal)
    await service.resize_exec(session, terminal.exec_id, rows=30, cols=90)
    assert await service.signal_exec(session, terminal.exec_id, 15) == 1
    await service.kill_exec(session, terminal.exec_id)
    await held.detach()
    await service.get_exec(session, request.exec_id, wait_s=1)
    await service.list_execs(session)
    await service.execute(session, ExecRequest(command="true", shell="main"))
    assert len(await service.list_shells(session)) == 1
    await service.close_shell(session, "main")
    await files.write("/workspace/a", b"bytes")
    await files.write("/workspace/b", pieces(b"in", b"pieces"))
    assert b"".join([piece async for piece in files.read("/workspace/b", offset=2)]) == b"pieces"
    assert await files.read_bytes("/workspace/a") == b"bytes"
    await files.stat("/workspace/a")
    await files.mkdir("/workspace/d")
    await files.move("/workspace/a", "/workspace/d/a")
    archive = [piece async for piece in files.read_archive("/workspace/d")]
    assert (await files.write_archive("/workspace/e", pieces(*archive))).files == 1
    async with files.watch("/workspace") as changes:
        await files.remove("/workspace/b")
        assert isinstance(await anext(changes), FileChange)
    await files.list("/workspace")
    await files.walk("/workspace")
    await files.search("/workspace", "x")
    await service.update_session(session, SessionChange(metadata={"a": "b"}))
    assert rig.coordinator.since() == []
    assert rig.gate.refused == 0
    await service.get_session(session)
    assert rig.coordinator.since() == ["get_session"]
    await service.delete_session(session)
    assert rig.coordinator.since() == []
    with pytest.raises(SessionEnded):
        await service.execute(session, ExecRequest(command="true"))


async def test_what_is_the_fleets_goes_to_the_coordinator(rig: Rig) -> None:
    session = await rig.session()
    await rig.service.list_sessions()
    await rig.service.catalogue()
    await rig.service.health()
    run = await rig.service.execute_in_thread(CreateSession(thread="t"), ExecRequest(command="echo t"))
    rig.fake.lose(session)
    await rig.service.recreate_session(session)
    expected = ["list_sessions", "catalogue", "health", "execute_in_thread", "recreate_session"]
    assert rig.coordinator.since() == expected
    assert rig.worker.since() == []
    await rig.run(session)
    await rig.run(run.opened.session.id)  # access came with the thread's run
    assert rig.worker.since() == ["execute", "execute"]
    assert rig.coordinator.since() == []


async def test_without_access_there_is_one_way(rig: Rig) -> None:
    rig.where = None
    await rig.run(await rig.session())
    assert rig.coordinator.since() == ["execute"]
    assert rig.worker.since() == []
    assert not rig.service._routes._routes


async def test_who_does_not_want_to_go_straight_does_not() -> None:
    async with rigged(direct=False) as rig:
        await rig.run(await rig.session())
        assert rig.coordinator.since() == ["execute"]
        assert rig.worker.since() == []


async def test_a_worker_takes_no_key_and_no_stranger(rig: Rig) -> None:
    session = await rig.session()
    other = (await rig.service.create_session(CreateSession())).session
    token = rig.tokens.for_session(OWNER, other, rig.worker_url, "w1").token
    for key in (None, API_KEY, token):
        stranger = HttpService(rig.worker_url, key)
        with pytest.raises(Unauthorized):
            await stranger.execute(session, ExecRequest(command="echo stolen"))
        with pytest.raises(Unauthorized):
            await stranger.create_session(CreateSession())
        await stranger.close()
    assert rig.worker.since() == []
    member = HttpService(rig.worker_url, lambda: rig.tokens.for_member("w1", OWNER))
    await member.execute(session, ExecRequest(command="true"))
    await member.close()
