"""Calls of a session go straight to its worker, and when that fails through the coordinator, once.

Two real servers: a coordinator that hands out access, a worker that takes tokens alone, and one fake service
behind both, so that whoever is asked, what has run is counted in one place.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
import pytest_asyncio

from sandlot.client.async_client import AsyncClient
from sandlot.client.http import HttpService, ways
from sandlot.client.http import service as http_service
from sandlot.client.http.connection import Connection
from sandlot.client.http.ways import Ways
from sandlot.domain.errors import (
    NotFound,
    SandlotError,
    SessionEnded,
    Unauthorized,
    Unavailable,
)
from sandlot.domain.execution import ExecRequest, ExecResult, Output, PtySize
from sandlot.domain.files import FileChange
from sandlot.domain.service import Access, SandboxService
from sandlot.domain.session import CreateSession, Session, SessionChange
from sandlot.fleet.access import AccessTokens, SigningKeys, TokenGate
from sandlot.testing import FakeService
from sandlot.testing.service_suite import ServiceHarness, ServiceSuite
from tests.service.served import served

KEYS = SigningKeys.parse("k1:" + "s" * 32)
API_KEY = "the-key-of-the-coordinator"


class Heard:
    """A service that notes what it was asked, and may refuse."""

    def __init__(self, fake: FakeService) -> None:
        self._fake = fake
        self.calls: list[str] = []
        self.raises: Callable[[], SandlotError] | None = None

    def __getattr__(self, name: str) -> Any:
        self.calls.append(name)
        if self.raises is not None:
            raise self.raises()
        return getattr(self._fake, name)

    def since(self) -> list[str]:
        calls, self.calls = self.calls, []
        return calls


class NotedGate(TokenGate):
    refused = admitted = 0

    def refusal(self, token: bytes, path: str) -> SandlotError | None:
        error = super().refusal(token, path)
        if error is None:
            self.admitted += 1
        else:
            self.refused += 1
        return error


@dataclass
class Rig:
    fake: FakeService
    coordinator: Heard
    worker: Heard
    gate: NotedGate
    service: HttpService
    url: str
    worker_url: str
    tokens: AccessTokens
    where: str | None  # what the coordinator says
    stopping: contextlib.AsyncExitStack = field(default_factory=contextlib.AsyncExitStack)

    async def session(self) -> str:
        opened = await self.service.create_session(CreateSession())
        assert self.coordinator.since() == ["create_session"]
        return opened.session.id

    async def run(self, session_id: str, command: str = "echo hi") -> ExecResult:
        request = ExecRequest(command=command)
        result = await self.service.execute(session_id, request)
        assert sum(call.request.exec_id == request.exec_id for call in self.fake.calls) == 1
        return result

    async def stop_worker(self) -> None:
        await self.stopping.aclose()

    def access(self, session: Session) -> Access | None:
        return None if self.where is None else self.tokens.for_session(session, self.where, "w1")


@contextlib.asynccontextmanager
async def rigged(
    *,
    lifetime_s: float = 60.0,
    clock: Callable[[], float] = time.time,
    worker_keys: SigningKeys = KEYS,
    direct: bool = True,
) -> AsyncIterator[Rig]:
    fake = FakeService()
    coordinator, worker = Heard(fake), Heard(fake)

    def generation_of(session_id: str) -> int | None:
        record = fake._records.get(session_id)
        return None if record is None else record.session.generation

    gate = NotedGate(worker_keys, worker_id="w1", generation_of=generation_of, clock=clock)
    tokens = AccessTokens(KEYS, lifetime_s=lifetime_s, clock=clock)
    async with contextlib.AsyncExitStack() as stack:
        stopping = await stack.enter_async_context(contextlib.AsyncExitStack())
        worker_url = await stopping.enter_async_context(
            served(as_service(worker), tokens=gate, worker_id="w1")
        )
        told: list[Rig] = []
        url = await stack.enter_async_context(
            served(as_service(coordinator), api_key=API_KEY, access=lambda session: told[0].access(session))
        )
        service = HttpService(url, API_KEY, direct=direct)
        stack.push_async_callback(service.close)
        told.append(
            Rig(fake, coordinator, worker, gate, service, url, worker_url, tokens, worker_url, stopping)
        )
        yield told[0]
        await fake.close()


def as_service(heard: Heard) -> SandboxService:
    return cast(SandboxService, heard)


@pytest_asyncio.fixture
async def rig() -> AsyncIterator[Rig]:
    async with rigged() as rig:
        yield rig


class TestStraight(ServiceSuite):
    """The whole contract on the way straight to the worker."""

    @pytest_asyncio.fixture(loop_scope="session", scope="class")
    @classmethod
    async def service_harness(cls) -> AsyncIterator[ServiceHarness]:
        async with rigged() as rig:
            rig.fake._max_execs = 12

            async def lose(session_id: str) -> None:
                rig.fake.lose(session_id)

            async with AsyncClient(service=rig.service) as client:
                yield ServiceHarness(client, lose, 12, rig.service, short_s=0.4)
            # The others are of sessions that were over, or lost and made anew by the case itself.
            assert rig.worker.calls.count("execute") > 10 * rig.coordinator.calls.count("execute")
            assert rig.worker.calls.count("files") > 10 * rig.coordinator.calls.count("files")


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
    assert await service.signal_exec(session, terminal.exec_id, 15) >= 0
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


async def pieces(*content: bytes) -> AsyncIterator[bytes]:
    for piece in content:
        yield piece


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
    assert not rig.service._ways._held


async def test_who_does_not_want_to_go_straight_does_not() -> None:
    async with rigged(direct=False) as rig:
        await rig.run(await rig.session())
        assert rig.coordinator.since() == ["execute"]
        assert rig.worker.since() == []


async def test_a_worker_takes_no_key_and_no_stranger(rig: Rig) -> None:
    session = await rig.session()
    other = (await rig.service.create_session(CreateSession())).session
    token = rig.tokens.for_session(other, rig.worker_url).token
    for key in (None, API_KEY, token):
        stranger = HttpService(rig.worker_url, key)
        with pytest.raises(Unauthorized):
            await stranger.execute(session, ExecRequest(command="echo stolen"))
        with pytest.raises(Unauthorized):
            await stranger.create_session(CreateSession())
        await stranger.close()
    assert rig.worker.since() == []
    member = HttpService(rig.worker_url, lambda: rig.tokens.for_member("w1"))
    await member.execute(session, ExecRequest(command="true"))
    await member.close()


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
    monkeypatch.setattr(ways, "CONNECT_TIMEOUT_S", 0.3)
    async with black_hole() as hole:
        rig.where = hole
        session = await rig.session()
        assert (await rig.run(session)).stdout == b"hi\n"
        assert await rig.service._ways.of(session) is None, "the next call does not try it"
        await rig.service.files(session).write("/workspace/a", pieces(b"x"))
        other = await rig.service.create_session(CreateSession())
        assert await rig.service._ways.of(other.session.id) is None, "nor does another session's"
        assert rig.coordinator.since() == ["execute", "files", "create_session"]


async def test_a_worker_is_tried_again_after_its_time(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ways, "LEFT_ALONE_S", 0.2)
    session = await rig.session()
    async with Cutting(rig.worker_url, cuts={0: 0}) as cut:
        rig.where = cut.url
        await rig.service.get_session(session)
        await rig.service.list_execs(session)
        assert rig.worker.since() == ["list_execs"]
        assert rig.coordinator.since() == ["get_session", "list_execs"]
        await rig.service.list_execs(session)
        assert rig.coordinator.since() == ["list_execs"]
        await asyncio.sleep(0.25)
        await rig.service.list_execs(session)
        assert rig.coordinator.since() == []


async def test_a_frozen_worker(rig: Rig) -> None:
    """The kernel takes the connection, the process says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as frozen:
        rig.where = f"http://127.0.0.1:{frozen.getsockname()[1]}"
        session = await rig.session()
        way = rig.service._way(session)
        path = f"/v1/sessions/{session}/execs"
        await way.call("GET", path, repeatable=True, read_timeout_s=0.2)
        assert rig.coordinator.since() == ["list_execs"]
        assert await rig.service._ways.of(session) is None


async def test_a_silent_command_does_not_shun_its_worker(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_service, "EXECUTE_READ_S", 0.1)
    session = await rig.session()
    assert (await rig.run(session, "sleep 0.5; echo late")).stdout == b"late\n"
    assert rig.worker.since() == ["execute", "get_exec"]
    assert rig.coordinator.since() == []


@pytest.mark.parametrize(
    "answer", ["302 Found", "403 Forbidden", "404 Not Found", "500 Oops", "503 No server"]
)
async def test_a_stranger_at_the_workers_address(rig: Rig, answer: str) -> None:
    """What it says is nothing about the session, be it that it is not found."""

    async def stranger(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(f"HTTP/1.1 {answer}\r\nContent-Length: 4\r\nConnection: close\r\n\r\noops".encode())
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(stranger, "127.0.0.1", 0) as listener:
        rig.where = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
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


async def test_what_a_proxy_may_have_passed_on_is_not_sent_again(rig: Rig) -> None:
    async def proxy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 500 Oops\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(proxy, "127.0.0.1", 0) as listener:
        rig.where = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
        session = await rig.session()
        with pytest.raises(SandlotError) as told:
            await rig.service.files(session).move("/workspace/a", "/workspace/b")
    assert told.value.may_have_executed
    assert rig.coordinator.since() == []


class Cutting:
    """In front of a server. The n-th connection is cut after so many bytes of its answer."""

    def __init__(self, url: str, cuts: dict[int, int]) -> None:
        self._port = int(url.rpartition(":")[2])
        self._cuts = cuts
        self._count = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Cutting:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = cast("asyncio.Task[None]", asyncio.current_task())
        self._tasks.add(task)
        left = self._cuts.get(self._count)
        self._count += 1
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self._port)
        asking = asyncio.create_task(_pass(reader, up_writer))
        try:
            while data := await up_reader.read(1024):
                writer.write(data if left is None else data[:left])
                await writer.drain()
                if left is not None and (left := left - len(data)) <= 0:
                    break
        finally:
            asking.cancel()
            up_writer.close()
            writer.close()


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()


@pytest.mark.parametrize("passed", [0, 1, 200])
async def test_a_command_whose_answer_was_cut_off_runs_once(rig: Rig, passed: int) -> None:
    """The worker has it; the result is had through the coordinator, by its id."""
    async with Cutting(rig.worker_url, cuts={0: passed}) as cut:
        rig.where = cut.url
        session = await rig.session()
        assert (await rig.run(session, "echo one; sleep 0.2; echo two")).stdout == b"one\ntwo\n"
    assert rig.worker.since() == ["execute"]
    assert rig.coordinator.since() == ["get_exec"]


async def test_what_must_not_be_done_twice_is_not_sent_on_another_way(rig: Rig) -> None:
    async with Cutting(rig.worker_url, cuts={0: 0}) as cut:
        rig.where = cut.url
        session = await rig.session()
        with pytest.raises(SandlotError) as broken:
            await rig.service.files(session).mkdir("/workspace/d", parents=False)
    assert broken.value.may_have_executed
    assert rig.worker.since() == ["files"]
    assert rig.coordinator.since() == []


@pytest.mark.parametrize("stdin", [False, True], ids=["event-stream", "websocket"])
async def test_a_stream_goes_on_through_the_coordinator(rig: Rig, stdin: bool) -> None:
    expected = b"".join(b"%d\n" % n for n in range(1, 20_001))
    async with Cutting(rig.worker_url, cuts=dict.fromkeys(range(5), 20_000)) as cut:
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
    rig.service._ways._held[session].renew_at = 0.0
    await rig.run(session)
    await rig.run(session)
    assert rig.coordinator.since() == ["get_session"], "and it is not asked each time"
    assert rig.worker.since() == ["execute"] * 3


# --- tokens that do not open any more -----------------------------------------------------------


async def test_access_is_renewed_before_it_is_over() -> None:
    """Once, however many calls need it at that moment."""
    async with rigged(lifetime_s=1.0) as rig:
        session = await rig.session()
        await rig.run(session)
        await asyncio.sleep(0.8)
        assert rig.coordinator.since() == []
        await asyncio.gather(*(rig.run(session) for _ in range(20)))
        assert rig.coordinator.since() == ["get_session"]
        assert rig.worker.since() == ["execute"] * 21
        assert rig.gate.refused == 0


async def test_one_of_many_that_wait_for_new_access_may_be_cancelled() -> None:
    async with rigged(lifetime_s=1.0) as rig:
        session = await rig.session()
        rig.service._ways._held[session].put_out()
        calls = [asyncio.create_task(rig.run(session)) for _ in range(5)]
        await asyncio.sleep(0)
        calls[0].cancel()
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert isinstance(results[0], asyncio.CancelledError)
        assert all(isinstance(result, ExecResult) for result in results[1:])


async def test_a_refused_token_is_renewed(rig: Rig) -> None:
    """Somebody else has made the session's sandbox anew: the token was for the one before."""
    session = await rig.session()
    rig.fake.lose(session)
    await rig.fake.recreate_session(session)
    result = await rig.run(session)
    assert result.generation == 2
    assert rig.gate.refused == 1
    assert rig.coordinator.since() == ["get_session"]
    assert rig.worker.since() == ["execute"]
    attached = await rig.service.start_exec(session, ExecRequest(command="cat", stdin=True))
    await attached.detach()
    assert rig.gate.refused == 1


async def test_a_websocket_that_is_refused(rig: Rig) -> None:
    session = await rig.session()
    rig.fake.lose(session)
    await rig.fake.recreate_session(session)
    request = ExecRequest(command="sleep 5", stdin=True)
    await rig.fake.start_exec(session, request)
    attached = await rig.service.attach_exec(session, request.exec_id)
    await attached.detach()
    assert rig.gate.refused == 1
    assert rig.coordinator.since() == ["get_session"]
    assert rig.worker.since() == ["attach_exec"]


async def test_a_worker_that_refuses_all_tokens() -> None:
    """As one with other keys: through the coordinator, and it is not asked each time."""
    async with rigged(worker_keys=SigningKeys.parse("k1:" + "t" * 32)) as rig:
        session = await rig.session()
        for _ in range(3):
            await rig.run(session)
        assert rig.gate.refused == 2
        assert rig.coordinator.since() == ["get_session", "execute", "execute", "execute"]


async def test_a_clock_that_is_hours_ahead_of_the_fleets() -> None:
    """Access looks over when it comes; it is used until it is refused."""
    async with rigged(clock=lambda: time.time() - 7200) as rig:
        session = await rig.session()
        for _ in range(3):
            await rig.run(session)
        assert rig.coordinator.since() == []
        assert rig.gate.refused == 0


async def test_content_is_not_sent_twice(rig: Rig) -> None:
    session = await rig.session()
    rig.fake.lose(session)
    await rig.fake.recreate_session(session)
    files = rig.service.files(session)
    taken = 0

    async def content() -> AsyncIterator[bytes]:
        nonlocal taken
        for _ in range(3):
            taken += 1
            yield b"x" * 1000

    with pytest.raises(Unavailable, match="send it again") as told:
        await files.write("/workspace/a", content())
    assert told.value.retryable
    assert not told.value.may_have_executed
    assert rig.worker.since() == []
    taken = 0
    assert (await files.write("/workspace/a", content())).size == 3000
    assert taken == 3
    assert rig.worker.since() == ["files"]
    assert rig.coordinator.since() == ["get_session"]


# --- sessions that are elsewhere ----------------------------------------------------------------


@pytest.mark.parametrize(
    "says",
    [
        lambda: NotFound("there is no such session"),
        lambda: Unavailable("given up", details={"reason": "not_here"}),
        lambda: Unavailable("another process has my name", details={"reason": "fenced"}),
        lambda: Unavailable("I was away", retry_after_s=1.0, details={"reason": "in_doubt"}),
    ],
    ids=["not-found", "not-here", "fenced", "in-doubt"],
)
async def test_a_session_that_has_another_worker(rig: Rig, says: Callable[[], SandlotError]) -> None:
    other = Heard(rig.fake)
    session = await rig.session()
    async with served(as_service(other), tokens=rig.gate, worker_id="w1") as other_url:
        rig.worker.raises = says
        rig.where = other_url
        await rig.run(session)
        await rig.run(session)
    assert rig.worker.since() == ["execute"]
    assert other.since() == ["execute", "execute"]
    assert rig.coordinator.since() == ["get_session"]


async def test_a_worker_that_gave_a_session_up_which_the_coordinator_still_sees_there(rig: Rig) -> None:
    session = await rig.session()
    rig.worker.raises = lambda: Unavailable("given up", details={"reason": "not_here"})
    attached = await rig.service.start_exec(session, ExecRequest(command="cat", stdin=True))
    await attached.detach()
    assert rig.coordinator.since() == ["get_session", "start_exec", "attach_exec"]
    await rig.run(session)
    assert rig.coordinator.since() == ["execute"], "for a while, straight is not tried"
    rig.worker.since()
    rig.worker.raises = None
    rig.service._ways._held[session].renew_at = 0.0
    await rig.run(session)
    assert rig.coordinator.since() == ["get_session"]
    assert rig.worker.since() == ["execute"]


async def test_a_websocket_to_a_session_that_moved(rig: Rig) -> None:
    """It is opened before the session is looked for, so the refusal comes as an event."""
    session = await rig.session()
    request = ExecRequest(command="sleep 5", stdin=True)
    await rig.fake.start_exec(session, request)
    rig.worker.raises = lambda: NotFound("there is no such session")
    rig.where = None
    attached = await rig.service.attach_exec(session, request.exec_id)
    await attached.detach()
    assert rig.worker.since() == ["attach_exec"]
    assert rig.coordinator.since() == ["get_session", "attach_exec"]


async def test_an_exec_that_is_not_there(rig: Rig) -> None:
    """The worker's word is good, since the coordinator says that the session is there."""
    session = await rig.session()
    with pytest.raises(NotFound):
        await rig.service.get_exec(session, "exec_none")
    assert rig.worker.since() == ["get_exec"]
    assert rig.coordinator.since() == ["get_session"]
    await rig.run(session)
    assert rig.worker.since() == ["execute"]


async def test_a_session_that_has_ended(rig: Rig) -> None:
    session = await rig.session()
    await rig.fake.delete_session(session)
    with pytest.raises(SessionEnded):
        await rig.service.execute(session, ExecRequest(command="true"))
    assert rig.worker.since() == ["execute"]
    assert rig.coordinator.since() == ["get_session"]
    assert not rig.service._ways.knows(session)


# --- what is kept, and where tokens may go ------------------------------------------------------


@pytest.mark.parametrize(
    ("door", "worker", "goes"),
    [
        ("https://fleet.example", "https://w1.example:8443", True),
        ("https://fleet.example", "http://w1.example:8000", False),
        ("https://fleet.example", "http://10.0.0.7:8000", False),
        ("https://fleet.example", "http://127.0.0.1:8000", False),
        ("http://fleet.example", "http://127.0.0.1:8000", False),
        ("http://localhost:9000", "http://127.0.0.1:8000", True),
        ("https://localhost:9000", "http://127.0.0.1:8000", True),
        ("https://fleet.example", "http://127.0.0.1.evil.example:8000", False),
        ("http://fleet.example", "http://10.0.0.7:8000/", True),
        ("http://fleet.example", "ftp://10.0.0.7", False),
        ("http://fleet.example", "file:///etc/passwd", False),
        ("http://fleet.example", "no url", False),
        ("http://fleet.example", "", False),
    ],
)
async def test_where_a_token_goes(door: str, worker: str, goes: bool) -> None:
    """What was secret on the way to the coordinator is not sent in the clear to a worker."""
    kept = ways_to(door)
    kept.saw("ses_1", Access(worker, "token", time.time() + 60))
    straight = await kept.of("ses_1")
    assert (straight is not None) is goes
    if straight is not None:
        assert straight.url == worker.rstrip("/")
        assert straight.auth == {"Authorization": "Bearer token"}
    await kept.close()


def ways_to(door: str) -> Ways:
    async def ask(session_id: str) -> Access | None:
        raise AssertionError(session_id)

    return Ways(Connection(door, "a-key"), ask)


async def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ways, "MAX_SESSIONS", 5)
    monkeypatch.setattr(ways, "MAX_WORKERS", 3)
    kept = ways_to("http://fleet.example")
    for n in range(20):
        kept.saw(f"ses_{n}", Access(f"http://10.0.0.{n}", "token", time.time() + 60))
        assert await kept.of(f"ses_{n}") is not None
        kept.saw("ses_0", Access("http://10.0.0.0", "token", time.time() + 60))  # seen again and again
    assert list(kept._held) == ["ses_16", "ses_17", "ses_18", "ses_19", "ses_0"]
    assert len(kept._workers) == 3
    assert await kept.of("ses_0") is not None
    await kept.close()
    assert not kept._workers
