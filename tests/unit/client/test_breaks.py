"""Connections that are cut: the one result still comes, and a stream goes on without gap or duplicate."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from tests.cutting_proxy import CuttingProxy

from sandlot import AsyncClient, Exited, Output, Started
from sandlot.client.http import execs as http_execs
from sandlot.client.http.retries import results as until_result
from sandlot.client.http.retries import rules as retries
from sandlot.client.http.retries.rules import OutageLimit
from sandlot.client.http.service import HttpService
from sandlot.client.http.streams import event_streams as lines
from sandlot.client.http.streams import execution as http_execution
from sandlot.client.http.streams.event_streams import WebSocketEventStream
from sandlot.domain.errors import LinkInterrupted, SandboxLost, SandlotError, Unavailable
from sandlot.domain.execution import Channel, ExecEvent, ExecRequest
from sandlot.domain.service import Opened
from sandlot.domain.session import CreateSession
from sandlot.testing.fake import execs as fake_execs

pytestmark = pytest.mark.slow  # outages, each in real time

Cutting = Callable[[Callable[[int], int | None]], Any]


async def new_session(server: Any, **options: Any) -> str:
    async with AsyncClient(server.url) as client:
        return (await client.create(**options)).id


def runs(server: Any, exec_id: str) -> int:
    return sum(call.request.exec_id == exec_id for call in server.fake.calls)


@pytest.mark.parametrize("passed", [1, 40, 200, 350])
async def test_execute_gives_the_one_result(server: Any, cutting: Cutting, passed: int) -> None:
    """Cut within the head and within the body of the answer."""
    session = await new_session(server)
    request = ExecRequest(command="echo one; sleep 0.05; echo two")
    async with cutting(lambda n: passed if n == 0 else None) as cut:
        result = await cut.service.execute(session, request)
        assert cut.proxy.cut == 1
    assert result.stdout == b"one\ntwo\n"
    assert runs(server, request.exec_id) == 1


async def test_execute_that_never_arrived_is_given_again(server: Any, cutting: Cutting) -> None:
    """The first connection is closed before the server hears of it; asking by id says 404."""
    session = await new_session(server)
    request = ExecRequest(command="echo once")
    async with cutting(lambda n: 0 if n == 0 else None) as cut:
        deaf, cut.proxy._port = cut.proxy._port, await _deaf_port()
        swap = asyncio.create_task(_swap(cut.proxy, deaf))
        result = await cut.service.execute(session, request)
        await swap
    assert result.stdout == b"once\n"
    assert runs(server, request.exec_id) == 1


_deaf: list[asyncio.Server] = []


async def _deaf_port() -> int:
    """Takes the request and hangs up without an answer."""

    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(65536)
        writer.close()

    _deaf.append(await asyncio.start_server(hang_up, "127.0.0.1", 0))
    port: int = _deaf[-1].sockets[0].getsockname()[1]
    return port


async def _swap(proxy: Any, port: int) -> None:
    while proxy.connections == 0:
        await asyncio.sleep(0.001)
    proxy._port = port
    await asyncio.sleep(0.1)
    _deaf.pop().close()


async def test_thread_exec_gives_the_one_result(server: Any, cutting: Cutting) -> None:
    request = ExecRequest(command="echo in thread")
    async with cutting(lambda n: 100 if n == 0 else None) as cut:
        run = await cut.service.execute_in_thread(CreateSession(thread="cut-off"), request)
        assert cut.proxy.cut == 1
    assert run.result.stdout == b"in thread\n"
    assert run.opened.session.thread == "cut-off"
    assert runs(server, request.exec_id) == 1


async def test_create_makes_one_session(server: Any, cutting: Cutting) -> None:
    before = (await server.fake.health()).active_sessions
    async with cutting(lambda n: 100 if n < 2 else None) as cut:
        opened = await cut.service.create_session(CreateSession(metadata={"a": "b"}))
        assert cut.proxy.cut == 2
    assert opened.session.metadata == {"a": "b"}
    assert (await server.fake.health()).active_sessions == before + 1


async def test_a_silent_execute_is_asked_about(
    server: Any, cutting: Cutting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As behind a proxy that holds no request for long."""
    monkeypatch.setattr(http_execs, "EXECUTE_READ_S", 0.1)
    monkeypatch.setattr(http_execs, "WAIT_PIECE_S", 0.2)
    session = await new_session(server)
    request = ExecRequest(command="sleep 0.7; echo late")
    async with cutting(lambda n: None) as cut:
        assert (await cut.service.execute(session, request)).stdout == b"late\n"
        assert cut.proxy.connections > 1
    assert runs(server, request.exec_id) == 1


async def test_what_is_never_answered_is_told_with_its_id(
    server: Any, cutting: Cutting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(until_result, "backoff", lambda tries: 0.0)
    session = await new_session(server)
    request = ExecRequest(command="echo x")
    async with cutting(lambda n: 10) as cut:
        with pytest.raises(LinkInterrupted, match=request.exec_id) as told:
            await cut.service.execute(session, request)
    assert told.value.may_have_executed
    assert told.value.details["exec_id"] == request.exec_id
    assert runs(server, request.exec_id) == 1


async def test_who_waits_for_an_end_waits_for_a_server_that_is_away(server: Any, cutting: Cutting) -> None:
    session_id = await new_session(server)
    async with cutting(lambda n: None) as cut, AsyncClient(cut.proxy.url) as patient:
        session = await patient.get(session_id)
        running = await session.start("sleep 0.5; echo done")
        await running.detach()
        there, cut.proxy._port = cut.proxy._port, await _deaf_port()
        for writer in cut.proxy.writers:
            writer.transport.abort()
        with pytest.raises(LinkInterrupted):  # who only looks is told at once
            await running.status()
        with pytest.raises(LinkInterrupted, match="Ask for its result by this id") as told:
            await running.wait(1)
        assert told.value.details["exec_id"] == running.id
        waiting = asyncio.create_task(running.wait())
        asked = cut.proxy.connections
        while cut.proxy.connections < asked + 6:
            await asyncio.sleep(0.01)
        cut.proxy._port = there
        assert (await waiting).output == "done\n"
        _deaf.pop().close()


async def test_a_silent_stream_outlives_more_than_one_outage(
    server: Any, cutting: Cutting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line that stood for a while ends an outage, also where the command has said nothing on it."""
    monkeypatch.setattr(http_execution, "STABLE_AFTER_S", 0.05)
    monkeypatch.setattr(http_execution, "backoff", lambda tries: 0.01)
    session = await new_session(server)
    async with cutting(lambda n: None) as cut:
        execution = await cut.service.start_exec(session, ExecRequest(command="sleep 3; echo done"))
        reading = asyncio.create_task(execution.result())
        for _ in range(2 * retries.MAX_BREAKS):
            connections = cut.proxy.connections
            await asyncio.sleep(0.1)
            cut.proxy.writers[-1].transport.abort()
            while cut.proxy.connections == connections and not reading.done():
                await asyncio.sleep(0.01)
        assert (await reading).stdout == b"done\n"


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_closed_client_keeps_nobody(server: Any, streamed: bool) -> None:
    session = await new_session(server)
    request = ExecRequest(command="sleep 60")
    client = HttpService(server.url)
    if streamed:
        execution = await client.start_exec(session, request)
        waiting: asyncio.Task[Any] = asyncio.create_task(execution.result())
    else:
        waiting = asyncio.create_task(client.execute(session, request))
    while not runs(server, request.exec_id):
        await asyncio.sleep(0.01)
    await client.close()
    with pytest.raises(LinkInterrupted):
        await asyncio.wait_for(waiting, 10)  # of the 30 s that it would wait for a server


async def read(execution: Any) -> tuple[bytes, list[Any]]:
    """All output, which must have neither gap nor duplicate, and the other events."""
    heard, others = b"", []
    async for event in execution.events():
        if isinstance(event, Output):
            assert event.offset == len(heard)
            heard += event.data
        else:
            others.append(event)
    return heard, others


LINES = b"".join(b"%d\n" % n for n in range(1, 20_001))


@pytest.mark.parametrize("stdin", [False, True], ids=["event-stream", "websocket"])
@pytest.mark.parametrize("passed", [3_000, 20_000])
async def test_a_stream_goes_on_where_it_was_cut(
    server: Any, cutting: Cutting, passed: int, stdin: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_execution, "backoff", lambda tries: 0.0)
    session = await new_session(server)
    request = ExecRequest(command="seq 20000", stdin=stdin)
    async with cutting(lambda n: None if n % 5 == 4 else passed) as cut:
        heard, others = await read(await cut.service.start_exec(session, request))
        assert cut.proxy.cut >= 3
    assert heard == LINES
    assert [type(event) for event in others] == [Started, Exited]
    assert runs(server, request.exec_id) == 1


async def test_a_stream_outlives_a_pause_in_the_middle(server: Any, cutting: Cutting) -> None:
    """Cut while the command is silent, so that the rest comes from the live command."""
    session = await new_session(server)
    request = ExecRequest(command="echo a; sleep 0.2; echo b; sleep 0.2; echo c")
    async with cutting(lambda n: 500 + 40 * n if n < 4 else None) as cut:
        heard, _ = await read(await cut.service.start_exec(session, request))
        assert cut.proxy.cut >= 1
    assert heard == b"a\nb\nc\n"


async def test_nothing_is_lost_before_the_websocket_is_there(
    server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a limit, output that has no reader is dropped; so somebody holds it from the start."""
    monkeypatch.setattr(fake_execs, "KEPT_BYTES", 12 * 1024 * 1024)  # more than sockets hold, as the agent's
    connect = WebSocketEventStream.open

    async def slow(*args: Any) -> WebSocketEventStream:
        await asyncio.sleep(0.5)
        return await connect(*args)

    monkeypatch.setattr(WebSocketEventStream, "open", slow)
    size = 24_000_000
    async with AsyncClient(server.url) as client:
        session = await client.create()
        running = await session.start(f"yes | head -c {size}", stdin=True, output_limit=None)
        heard = 0
        async for event in running.events():
            if isinstance(event, Output):
                assert event.offset == heard
                heard += len(event.data)
        await running.detach()
    assert heard == size


async def test_a_command_is_not_run_again_in_another_sandbox(
    server: Any, cutting: Cutting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cut off, the sandbox lost and made anew by somebody else: the new one does not know the exec."""

    def disturb(session: str) -> None:
        server.fake.lose(session)
        server.fake._recreate(server.fake._record(session))

    for in_thread in (False, True):
        session = await new_session(server, thread="disturbed" if in_thread else None)
        request = ExecRequest(command="sleep 30; echo harm")
        async with cutting(lambda n: None) as cut:
            await cut.service.get_session(session)
            call = asyncio.create_task(
                cut.service.execute_in_thread(CreateSession(thread="disturbed"), request)
                if in_thread
                else cut.service.execute(session, request)
            )
            while not runs(server, request.exec_id):
                await asyncio.sleep(0.01)
            disturb(session)
            cut.proxy.writers[0].transport.abort()
            with pytest.raises(SandboxLost) as lost:
                await call
        assert lost.value.may_have_executed
        assert runs(server, request.exec_id) == 1


async def test_a_command_is_not_run_again_in_a_thread_s_next_session(server: Any, cutting: Cutting) -> None:
    """Cut off, and the session that the call itself had made is deleted: the thread has none, and knew of one."""
    request = ExecRequest(command="sleep 30; echo harm")
    async with cutting(lambda n: None) as cut:
        call = asyncio.create_task(cut.service.execute_in_thread(CreateSession(thread="deleted"), request))
        while not runs(server, request.exec_id):
            await asyncio.sleep(0.01)
        (session,) = (await server.fake.list_sessions(thread="deleted")).sessions
        await server.fake.delete_session(session.id)
        cut.proxy.writers[0].transport.abort()
        with pytest.raises(SandboxLost) as lost:
            await call
    assert lost.value.may_have_executed
    assert runs(server, request.exec_id) == 1


async def test_a_thread_s_first_command_that_never_arrived_is_given_again(
    server: Any, cutting: Cutting
) -> None:
    request = ExecRequest(command="echo once")
    async with cutting(lambda n: 0 if n == 0 else None) as cut:
        deaf, cut.proxy._port = cut.proxy._port, await _deaf_port()
        swap = asyncio.create_task(_swap(cut.proxy, deaf))
        run = await cut.service.execute_in_thread(CreateSession(thread="never-arrived"), request)
        await swap
    assert run.result.stdout == b"once\n"
    assert runs(server, request.exec_id) == 1


async def test_a_start_that_broke_is_not_repeated_in_another_sandbox(server: Any, cutting: Cutting) -> None:
    session = await new_session(server)
    request = ExecRequest(command="sleep 30; echo harm")
    async with cutting(lambda n: 0 if n == 0 else None) as cut:
        start, begun = server.fake.start_exec, asyncio.Event()

        async def starts_and_is_lost(*arguments: Any, **options: Any) -> Any:
            execution = await start(*arguments, **options)
            if not begun.is_set():
                begun.set()
                server.fake.lose(session)
                server.fake._recreate(server.fake._record(session))
            return execution

        server.fake.start_exec = starts_and_is_lost
        try:
            with pytest.raises(SandboxLost) as lost:
                await cut.service.start_exec(session, request)
        finally:
            del server.fake.start_exec
        assert cut.proxy.cut == 1
    assert lost.value.may_have_executed
    assert runs(server, request.exec_id) == 1


async def test_a_start_that_broke_may_run_although_nobody_answers_any_more(server: Any) -> None:
    session = await new_session(server)
    request = ExecRequest(command="sleep 0.1")
    async with CuttingProxy(server.port, lambda n: 0) as proxy:
        service = HttpService(proxy.url, max_outage_s=0, patience_s=0)
        starting = asyncio.create_task(service.start_exec(session, request))
        while not proxy.connections:
            await asyncio.sleep(0.001)
        proxy._server.close()  # from here on nobody can connect
        with pytest.raises((Unavailable, LinkInterrupted)) as failed:
            await starting
        await service.close()
    assert failed.value.may_have_executed
    assert runs(server, request.exec_id) == 1


async def test_input_is_not_resumed(server: Any, cutting: Cutting) -> None:
    """How much of it arrived is not known; reading goes on, writing says so."""
    session = await new_session(server)
    request = ExecRequest(command="cat", stdin=True, timeout_s=30)
    async with cutting(lambda n: None) as cut:
        execution = await cut.service.start_exec(session, request)
        events = execution.events()
        assert isinstance(await anext(events), Started)
        await execution.write_stdin(b"before")
        assert (await anext(events)).data == b"before"
        for writer in cut.proxy.writers:
            writer.transport.abort()
        following = asyncio.create_task(anext(events))
        await asyncio.sleep(0.5)
        with pytest.raises(LinkInterrupted, match="Attach"):
            await execution.write_stdin(b"after")
        again = await cut.service.attach_exec(session, request.exec_id, offset=6)
        await again.write_stdin(b" again")
        assert (await following).data == b" again"
        await again.close_stdin()
        assert isinstance(await anext(events), Exited)
        await again.detach()


async def test_a_stream_that_cannot_go_on_says_where_it_was(
    server: Any, cutting: Cutting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_execution, "backoff", lambda tries: 0.0)
    session = await new_session(server)
    request = ExecRequest(command="echo first; sleep 30", timeout_s=30)
    async with cutting(lambda n: None if n == 0 else 1) as cut:
        events = (await cut.service.start_exec(session, request)).events()
        assert isinstance(await anext(events), Started)
        assert (await anext(events)).data == b"first\n"
        cut.proxy.writers[0].transport.abort()
        with pytest.raises(LinkInterrupted, match="offset 6") as told:
            await anext(events)
    assert told.value.details == {"exec_id": request.exec_id, "offset": 6}
    await server.fake.kill_exec(session, request.exec_id)


async def test_being_told_the_same_again_is_no_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines that confirm the exec, repeat what is known and break: not for ever."""
    monkeypatch.setattr(http_execution, "backoff", lambda tries: 0.0)

    class RepeatingStream:
        async def events(self) -> AsyncIterator[ExecEvent]:
            yield Started(1, False)
            yield Output(Channel.STDOUT, 0, b"abc")
            raise LinkInterrupted("cut")

        async def send(self, message: bytes | str) -> None: ...

        async def close(self) -> None: ...

    dials = []

    async def dial(offset: int) -> RepeatingStream:
        dials.append(offset)
        return RepeatingStream()

    async def reroute_after(error: SandlotError, **_: bool) -> bool:
        return False

    execution = http_execution.HttpExecution("ses_1", "e1", dial, reroute_after, 0, set(), OutageLimit(0))
    await execution.open(dial)
    events = execution.events()
    assert [await anext(events), await anext(events)] == [
        Started(1, False),
        Output(Channel.STDOUT, 0, b"abc"),
    ]
    with pytest.raises(LinkInterrupted, match="offset 3"):
        await anext(events)
    assert dials == [0] + [3] * (retries.MAX_BREAKS - 1)


async def test_a_cancelled_create_leaves_no_session(server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server has made it, the answer is on its way, and nobody waits for it any more."""
    create = server.fake.create_session
    made = threading.Event()

    async def slow(request: CreateSession) -> Opened:
        opened = await create(request)
        if not made.is_set():
            made.set()
            await asyncio.sleep(0.3)
        return opened

    monkeypatch.setattr(server.fake, "create_session", slow)
    async with AsyncClient(server.url) as client:
        before = {session.id async for session in client.sessions()}
        creating = asyncio.create_task(client.create())
        assert await asyncio.to_thread(made.wait, 10)
        creating.cancel()
        with pytest.raises(asyncio.CancelledError):
            await creating
        assert {session.id async for session in client.sessions()} == before


async def test_a_websocket_that_goes_silent_is_left(server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As that of a machine that has lost its power: nothing comes, and nothing breaks."""
    monkeypatch.setattr(lines, "SILENCE_S", 0.2)
    monkeypatch.setattr(retries, "MAX_BREAKS", 2)
    session = await new_session(server)
    async with AsyncClient(service=HttpService(server.url, max_outage_s=0, patience_s=0)) as client:
        held = await client.service.start_exec(session, ExecRequest("read line", stdin=True))
        with pytest.raises(LinkInterrupted, match="went silent"):
            async for _ in held.events():
                pass
        await client.service.kill_exec(session, held.exec_id)


async def test_reader_that_comes_back_to_a_lost_sandbox_is_told_that_its_command_may_have_run() -> None:
    """The new line tells of a call on which nothing was begun; the command was, before the break."""

    class Broken:
        def __init__(self, *events: ExecEvent, error: SandlotError) -> None:
            self._events, self._error = events, error

        async def events(self) -> AsyncIterator[ExecEvent]:
            for event in self._events:
                yield event
            raise self._error

        async def send(self, message: bytes | str) -> None: ...

        async def close(self) -> None: ...

    async def first(_: int) -> Any:
        return Broken(Started(1, existing=False), error=LinkInterrupted("cut"))

    async def again(_: int) -> Any:
        return Broken(error=SandboxLost("gone", may_have_executed=False))

    async def reroute_after(error: SandlotError, *, repeatable: bool, again: bool) -> bool:
        return True

    reader = http_execution.HttpExecution("ses", "e", again, reroute_after, 0, set(), OutageLimit(30))
    await reader.open(first)
    with pytest.raises(SandboxLost) as lost:
        await reader.result()
    assert lost.value.may_have_executed
