"""Workers that cannot be reached: their calls go through the coordinator, and nothing runs twice."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator

import pytest

from sandlot.client.http import execs as http_execs
from sandlot.client.http.routing import routes
from sandlot.domain.errors import (
    LinkInterrupted,
    SandlotError,
    Unavailable,
)
from sandlot.domain.execution import ExecRequest, Output
from sandlot.domain.session import CreateSession
from sandlot.testing import FakeService
from tests.cutting_proxy import CuttingProxy
from tests.fleet.straight_rig import Rig, pieces
from tests.service.served import served

# --- workers that cannot be reached -------------------------------------------------------------


async def test_a_closed_port(rig: Rig) -> None:
    session = await rig.session()
    await rig.run(session)
    await rig.stop_worker()
    assert (await rig.run(session)).stdout == b"hi\n"
    attached = await rig.service.start_exec(session, ExecRequest(command="cat", stdin=True))
    await attached.close_stdin()
    await attached.result()
    files = rig.service.files(session)
    assert (await files.write("/workspace/b", pieces(b"in", b"pieces"))).size == 8
    assert rig.coordinator.since() == ["execute", "start_exec", "attach_exec", "files"]


async def test_many_calls_at_once_to_a_closed_port(rig: Rig) -> None:
    session = await rig.session()
    await rig.stop_worker()
    files = rig.service.files(session)
    await asyncio.gather(*(files.stat("/workspace") for _ in range(20)))
    assert rig.coordinator.since() == ["files"] * 20


@contextlib.asynccontextmanager
async def black_hole() -> AsyncIterator[str]:
    """Answers no attempt to connect: its queue is full, and nobody takes anything from it."""
    with contextlib.ExitStack() as stack:
        hole = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(4):
            filling = stack.enter_context(socket.socket())
            filling.setblocking(False)
            filling.connect_ex(hole.getsockname())
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.open_connection(*hole.getsockname()), 0.3)
        yield f"http://127.0.0.1:{hole.getsockname()[1]}"


async def test_a_black_hole_is_left_alone(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "CONNECT_TIMEOUT_S", 0.3)
    async with black_hole() as hole:
        rig.where = hole
        session = await rig.session()
        assert (await rig.run(session)).stdout == b"hi\n"
        assert await rig.service._routes.direct_to(session) is None, "the next call does not try it"
        await rig.service.files(session).write("/workspace/a", pieces(b"x"))
        other = await rig.service.create_session(CreateSession())
        assert await rig.service._routes.direct_to(other.session.id) is None, "nor does another session's"
        assert rig.coordinator.since() == ["execute", "files", "create_session"]


async def test_a_worker_is_tried_again_after_its_time(rig: Rig) -> None:
    session = await rig.session()
    async with cutting(rig, {0: 0}) as cut:
        rig.where = cut.url
        await rig.service.get_session(session)
        await rig.service.list_execs(session)
        assert rig.worker.since() == ["list_execs"]
        assert rig.coordinator.since() == ["get_session", "list_execs"]
        await rig.service.list_execs(session)
        assert rig.coordinator.since() == ["list_execs"]
        (worker,) = rig.service._routes._workers.values()
        assert worker.avoided_until > time.monotonic()
        worker.avoided_until = time.monotonic()
        await rig.service.list_execs(session)
        assert rig.coordinator.since() == []


async def test_a_frozen_worker(rig: Rig) -> None:
    """The kernel takes the connection, the process says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as frozen:
        rig.where = f"http://127.0.0.1:{frozen.getsockname()[1]}"
        session = await rig.session()
        calls = rig.service._calls_to(session)
        path = f"/v1/sessions/{session}/execs"
        # The coordinator has as long for its answer, on a machine that may stand still for a moment.
        await calls.call("GET", path, repeatable=True, read_timeout_s=2.0)
        assert rig.coordinator.since() == ["list_execs"]
        assert await rig.service._routes.direct_to(session) is None


async def test_a_silent_command_does_not_shun_its_worker(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_execs, "EXECUTE_READ_S", 0.1)
    session = await rig.session()
    assert (await rig.run(session, "sleep 0.5; echo late")).stdout == b"late\n"
    assert rig.worker.since() == ["execute", "get_exec"]
    assert rig.coordinator.since() == []


@contextlib.asynccontextmanager
async def answering(answer: str) -> AsyncIterator[str]:
    """Somebody who says the same to everything, and is none of ours."""

    async def answers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(f"HTTP/1.1 {answer}\r\nContent-Length: 4\r\nConnection: close\r\n\r\noops".encode())
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answers, "127.0.0.1", 0) as listener:
        yield f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"


@pytest.mark.parametrize(
    "answer", ["302 Found", "403 Forbidden", "404 Not Found", "500 Oops", "503 No server"]
)
async def test_a_stranger_at_the_workers_address(rig: Rig, answer: str) -> None:
    """What it says is nothing about the session, be it that it is not found."""
    async with answering(answer) as url:
        rig.where = url
        session = await rig.session()
        await rig.service.list_execs(session)
        assert (await rig.run(session)).stdout == b"hi\n"
    assert rig.coordinator.since() == ["list_execs", "execute"]


async def test_another_server_of_ours_at_the_workers_address(rig: Rig) -> None:
    """As where the same address is a developer's own on this network."""
    stranger = FakeService()
    async with served(stranger) as url:
        rig.where = url
        session = await rig.session()
        await rig.service.list_execs(session)
        assert (await rig.run(session)).stdout == b"hi\n"
        await rig.service.delete_session(session)
    assert rig.coordinator.since() == ["list_execs", "execute", "delete_session"]
    assert stranger.calls == []
    await stranger.close()


async def test_another_worker_at_the_workers_address_is_not_believed_by_websocket_either(rig: Rig) -> None:
    """One that takes the same tokens and knows nothing of the session."""
    stranger = FakeService()
    session = await rig.session()
    request = ExecRequest(command="cat", stdin=True)
    await rig.fake.start_exec(session, request)
    async with served(stranger, worker_id="w2") as url:
        rig.where = url
        assert (await rig.session()) != session
        await rig.service.get_session(session)
        rig.coordinator.since()
        execution = await rig.service.attach_exec(session, request.exec_id)
        await execution.write_stdin(b"here\n")
        await execution.close_stdin()
        heard = b"".join([event.data async for event in execution.events() if isinstance(event, Output)])
    assert heard == b"here\n"
    assert rig.coordinator.since() == ["attach_exec"]
    await stranger.close()


async def test_what_a_proxy_may_have_passed_on_is_not_sent_again(rig: Rig) -> None:
    async with answering("500 Oops") as url:
        rig.where = url
        session = await rig.session()
        with pytest.raises(Unavailable, match="returned status 500") as told:
            await rig.service.files(session).move("/workspace/a", "/workspace/b")
    assert told.value.may_have_executed
    assert rig.coordinator.since() == []


def cutting(rig: Rig, cuts: dict[int, int]) -> CuttingProxy:
    """In front of the worker. By the number of the connection: after how many bytes of its answer it is cut."""
    return CuttingProxy(int(rig.worker_url.rpartition(":")[2]), cuts.get)


@pytest.mark.parametrize("passed", [0, 1, 200])
async def test_a_command_whose_answer_was_cut_off_runs_once(rig: Rig, passed: int) -> None:
    """The worker has it; the result is had through the coordinator, by its id."""
    async with cutting(rig, {0: passed}) as cut:
        rig.where = cut.url
        session = await rig.session()
        assert (await rig.run(session, "echo one; sleep 0.2; echo two")).stdout == b"one\ntwo\n"
    assert rig.worker.since() == ["execute"]
    assert rig.coordinator.since() == ["get_exec"]


async def test_what_must_not_be_done_twice_is_not_sent_on_another_way(rig: Rig) -> None:
    async with cutting(rig, {0: 0}) as cut:
        rig.where = cut.url
        session = await rig.session()
        with pytest.raises(LinkInterrupted) as broken:
            await rig.service.files(session).mkdir("/workspace/d", parents=False)
    assert broken.value.may_have_executed
    assert rig.worker.since() == ["files"]
    assert rig.coordinator.since() == []


@pytest.mark.parametrize("stdin", [False, True], ids=["event-stream", "websocket"])
async def test_a_stream_goes_on_through_the_coordinator(rig: Rig, stdin: bool) -> None:
    expected = b"".join(b"%d\n" % n for n in range(1, 20_001))
    async with cutting(rig, dict.fromkeys(range(5), 20_000)) as cut:
        rig.where = cut.url
        session = await rig.session()
        request = ExecRequest(command="seq 20000", stdin=stdin)
        execution = await rig.service.start_exec(session, request)
        heard = b""
        async for event in execution.events():
            if isinstance(event, Output):
                assert event.offset == len(heard)
                heard += event.data
    assert heard == expected
    assert len(rig.fake.calls) == 1
    assert rig.coordinator.since() == ["attach_exec"]


async def test_the_coordinator_may_be_away(rig: Rig) -> None:
    """What has access goes on, also when that is nearly over and cannot be renewed."""
    session = await rig.session()

    def away() -> SandlotError:
        return Unavailable("the directory is away", retry_after_s=1.0)

    rig.coordinator.raises = away
    await rig.run(session)
    rig.service._routes._routes[session].renew_at = 0.0
    await rig.run(session)
    await rig.run(session)
    assert rig.coordinator.since() == ["get_session"], "and it is not asked each time"
    assert rig.worker.since() == ["execute"] * 3
