"""The contract over HTTP: everything that the SDK does, through the real API to the fake service."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from sandlot import (
    NEVER,
    AsyncClient,
    AsyncSession,
    CommandFailed,
    Exited,
    LimitChange,
    Output,
    Started,
    Verdict,
)
from sandlot.client.http import HttpService
from sandlot.client.http.transport.connection import Connection
from sandlot.domain.errors import (
    Conflict,
    FileProblem,
    InvalidRequest,
    NotFound,
    SandboxLost,
    SandlotError,
    SessionEnded,
    Unauthorized,
    Unavailable,
)
from sandlot.domain.execution import ExecRequest
from sandlot.domain.session import CreateSession, SessionState
from sandlot.testing.eventually import eventually
from sandlot.testing.fake import Reply


class TestSessions:
    async def test_create_get_update_delete(self, client: AsyncClient) -> None:
        session = await client.create(
            env={"A": "b"}, metadata={"who": "me"}, idle_timeout_s=NEVER, limits=LimitChange(pids=64)
        )
        assert session.created
        assert (session.info.idle_timeout_s, session.info.limits.pids) == (None, 64)
        assert (await session.run("echo $A")).stdout == "b\n"
        again = await client.get(session.id)
        assert (again.info.metadata, again.created) == ({"who": "me"}, False)
        await again.update(metadata={"who": "you"}, lifetime_s=5000)
        assert (await session.refresh()).info.metadata == {"who": "you"}
        await session.extend(100)
        assert session.info.lifetime_s is not None
        assert 99 < session.info.lifetime_s < 200
        await session.delete()
        await session.delete()
        with pytest.raises(SessionEnded, match="deleted"):
            await session.run("true")

    async def test_a_thread_has_one_session(self, client: AsyncClient) -> None:
        sessions = await asyncio.gather(*(client.thread("talk/1 of 2".replace(" ", "_")) for _ in range(10)))
        assert len({session.id for session in sessions}) == 1
        assert sum(session.created for session in sessions) == 1
        result = await client.run_in_thread("talk/1_of_2", "echo $X; cat", env={"X": "y"}, stdin="z")
        assert (result.output, result.session_id) == ("y\nz", sessions[0].id)

    async def test_sessions_are_paged_through(self, client: AsyncClient) -> None:
        made = {(await client.create(metadata={"n": str(n)})).id for n in range(130)}
        assert made <= {session.id async for session in client.sessions()}
        await client.thread("just-this")
        assert [session.thread async for session in client.sessions(thread="just-this")] == ["just-this"]

    async def test_a_lost_session_is_told_and_recreated(self, client: AsyncClient, server: Any) -> None:
        session = await client.create()
        server.fake.lose(session.id)
        with pytest.raises(SandboxLost) as lost:
            await session.run("true")
        assert lost.value.details["loss"]["generation"] == 1
        assert (await session.refresh()).state is SessionState.LOST
        assert (await session.recreate()).generation == 2
        with pytest.raises(Conflict):
            await session.recreate()
        assert (await session.run("true")).generation == 2

    async def test_catalogue_and_health(self, client: AsyncClient) -> None:
        assert (await client.catalogue()).environments[0].name == "base"
        assert (await client.health()).ready

    @pytest.mark.parametrize("wrong", ["", ".", ".."])
    async def test_an_id_does_not_climb(self, session: AsyncSession, wrong: str) -> None:
        with pytest.raises(InvalidRequest):
            await (await session.exec(wrong)).kill()
        assert (await session.refresh()).state is SessionState.ACTIVE

    async def test_strange_ids_are_not_found(self, client: AsyncClient) -> None:
        for wrong in ("ses_x/../../health", "a b", "ü", "%2e%2e", "?x=1#y", "x" * 2000):
            with pytest.raises(NotFound):
                await client.get(wrong)


class TestExecs:
    async def test_result(self, session: AsyncSession) -> None:
        result = await session.run("echo out; echo err >&2; exit 3")
        assert (result.exit_code, result.stdout, result.stderr) == (3, "out\n", "err\n")
        assert (result.verdict, result.ok, result.session_id) == (Verdict.NONZERO, False, session.id)
        with pytest.raises(CommandFailed, match="exit code 3"):
            await session.run("exit 3", check=True)

    async def test_bytes_are_exact(self, session: AsyncSession) -> None:
        every = bytes(range(256))
        result = await session.run(["cat"], stdin=every * 40)
        assert result.raw.stdout == every * 40
        assert result.raw.output == every * 40

    async def test_timeout_and_truncation(self, session: AsyncSession) -> None:
        assert (await session.run("sleep 30", timeout_s=0.2)).timed_out
        assert (await session.run("seq 10000", output_limit=100)).truncated
        assert (await session.run("yes", output_limit=100, on_limit="kill")).verdict is Verdict.OUTPUT_LIMIT

    async def test_wrong_options_are_refused_here(self, session: AsyncSession) -> None:
        for wrong in ({"timeout_s": -1}, {"on_limit": "explode"}, {"exec_id": "a b"}, {"env": {"": "x"}}):
            with pytest.raises(InvalidRequest):
                await session.run("true", **wrong)  # type: ignore[arg-type]
        with pytest.raises(InvalidRequest):
            await session.run("echo \ud800")

    async def test_the_same_id_runs_once(self, session: AsyncSession, server: Any) -> None:
        results = await asyncio.gather(*(session.run("sleep 0.1; echo x", exec_id="once") for _ in range(5)))
        assert {result.output for result in results} == {"x\n"}
        assert sum(call.request.exec_id == "once" for call in server.fake.calls) == 1

    async def test_stream(self, session: AsyncSession) -> None:
        events = [event async for event in session.stream("echo a; echo b >&2; exit 4")]
        assert isinstance(events[0], Started)
        assert [event.data for event in events if isinstance(event, Output)] == [b"a\n", b"b\n"]
        assert isinstance(events[-1], Exited)
        assert events[-1].code == 4

    async def test_stream_with_input(self, session: AsyncSession) -> None:
        data = bytes(range(256)) * 1000
        events = [event async for event in session.stream("cat", stdin=data, output_limit=None)]
        assert b"".join(event.data for event in events if isinstance(event, Output)) == data

    async def test_a_stream_that_is_left_does_not_end_the_exec(self, session: AsyncSession) -> None:
        async for event in session.stream("echo a; sleep 0.3; echo b", exec_id="left"):
            if isinstance(event, Output):
                break
        assert (await (await session.exec("left")).wait()).stdout == "a\nb\n"

    async def test_background(self, session: AsyncSession) -> None:
        running = await session.start("echo a; sleep 0.3; echo b")
        assert (await running.status()).running
        assert [summary.exec_id for summary in await session.execs()] == [running.id]
        with pytest.raises(TimeoutError):
            await running.wait(timeout_s=0.05)
        result = await running.wait(timeout_s=20)
        assert (result.output, result.generation) == ("a\nb\n", 1)
        late = [event.data async for event in running.events(offset=2) if isinstance(event, Output)]
        assert late == [b"b\n"]

    async def test_without_a_limit_waiting_reads(self, session: AsyncSession) -> None:
        running = await session.start("seq 100000", output_limit=None)
        result = await running.wait(timeout_s=60)
        assert result.stdout.endswith("99999\n100000\n")
        endless = await session.start("sleep 30", output_limit=None)
        with pytest.raises(TimeoutError, match=rf"{endless.id} is still running after 0.05 s"):
            await endless.wait(timeout_s=0.05)
        await endless.kill()

    async def test_stdin_both_ways(self, session: AsyncSession) -> None:
        running = await session.start("cat", stdin=True)
        events = running.events()
        assert isinstance(await anext(events), Started)
        for word in (b"one", b"two"):
            await running.write(word)
            echoed = await asyncio.wait_for(anext(events), 10)
            assert isinstance(echoed, Output)
            assert echoed.data == word
        await running.close_stdin()
        assert isinstance(await asyncio.wait_for(anext(events), 10), Exited)
        assert (await running.wait()).stdout == "onetwo"

    async def test_terminal(self, session: AsyncSession) -> None:
        terminal = await session.terminal("stty size; read x; stty size; echo got $x", rows=30, cols=100)
        events, heard = terminal.events(), b""
        async for event in events:
            heard += event.data if isinstance(event, Output) else b""
            if b"30 100" in heard:
                break
        await terminal.resize(40, 120)
        await terminal.write("word\n")
        heard += b"".join(
            [event.data async for event in terminal.events(len(heard)) if isinstance(event, Output)]
        )
        assert b"40 120" in heard
        assert b"got word" in heard
        await terminal.detach()

    async def test_resize_by_id_alone(self, session: AsyncSession) -> None:
        terminal = await session.terminal("read x; stty size")
        service = session.client.service
        assert isinstance(service, HttpService)
        other = HttpService(service.url)
        await other.resize_exec(session.id, terminal.id, rows=50, cols=132)
        await other.close()
        await terminal.write("go\n")
        heard = b"".join([event.data async for event in terminal.events() if isinstance(event, Output)])
        assert b"50 132" in heard

    async def test_kill_and_signal(self, session: AsyncSession) -> None:
        running = await session.start("sleep 60")
        assert await running.kill() >= 1
        assert (await running.wait(timeout_s=10)).verdict is Verdict.KILLED
        running = await session.start("sleep 60")
        assert await running.signal(15) >= 1
        assert (await running.wait(timeout_s=10)).exit_code == 143

    async def test_unknown_exec(self, session: AsyncSession) -> None:
        nobody = await session.exec("nobody")
        with pytest.raises(NotFound):
            await nobody.status()
        with pytest.raises(NotFound):
            await anext(nobody.events())

    async def test_shell_keeps_its_state(self, session: AsyncSession) -> None:
        shell = session.shell()
        await shell.run("mkdir -p d; cd d; X=1")
        assert (await shell.run("pwd; echo $X")).stdout == "/workspace/d\n1\n"
        assert [summary.name for summary in await session.shells()] == ["main"]
        await shell.close()
        assert await session.shells() == []

    async def test_closing_lets_go_of_what_is_open(self, server: Any) -> None:
        client = AsyncClient(server.url)
        session = await client.create()
        await session.terminal("cat")
        await session.start("yes", output_limit=None)
        before = asyncio.all_tasks()
        await client.aclose()
        await eventually(lambda: asyncio.all_tasks() <= before, 10, "no new task is left")
        with pytest.raises(Unavailable, match="closed"):
            await client.health()


class TestRefusals:
    async def test_nobody_there(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
        async with AsyncClient(f"http://127.0.0.1:{port}") as client:
            for call in (client.create(), client.health(), client.run_in_thread("t", "true")):
                with pytest.raises(
                    Unavailable, match=rf"127.0.0.1:{port}.*Is a Sandlot server running there"
                ) as refused:
                    await call
                assert (refused.value.retryable, refused.value.may_have_executed) == (True, False)

    async def test_key(self, guarded: Any) -> None:
        async with AsyncClient(guarded.url, api_key="the-key") as client:
            session = await client.create()
            assert (await session.run("echo in")).output == "in\n"
            running = await session.start("cat", stdin=True)
            await running.detach()
        for wrong in ("another", "the-key-"):
            async with AsyncClient(guarded.url, api_key=wrong) as client:
                with pytest.raises(Unauthorized):
                    await client.create()
        other = HttpService(guarded.url, "wrong")
        with pytest.raises(Unauthorized):
            await other.attach_exec(session.id, running.id)
        await other.close()

    async def test_a_key_that_changes_is_asked_for_each_time(self, guarded: Any) -> None:
        present = ["the-key"]
        service = HttpService(guarded.url, lambda: present[0])
        session = (await service.create_session(CreateSession())).session
        request = ExecRequest(command="cat", stdin=True)
        running = await service.start_exec(session.id, request)  # a stream, then a WebSocket
        await running.detach()
        present[0] = "another"
        with pytest.raises(Unauthorized):
            await service.get_session(session.id)
        with pytest.raises(Unauthorized):
            await service.attach_exec(session.id, request.exec_id)
        present[0] = "the-key"
        assert (await service.get_session(session.id)).id == session.id
        present[0] = "not a key"
        with pytest.raises(InvalidRequest):
            await service.get_session(session.id)
        await service.close()

    def test_headers_are_made_once_for_a_key(self) -> None:
        present = ["one"]
        connection = Connection("http://127.0.0.1:1", lambda: present[0])
        first = connection._current_headers()
        assert connection._current_headers() is first
        present[0] = "two"
        assert connection.identity_headers == {"Authorization": "Bearer two"}
        fixed = connection.with_key("three")
        assert (fixed.identity_headers, connection.identity_headers) == (
            {"Authorization": "Bearer three"},
            {"Authorization": "Bearer two"},
        )

    async def test_the_key_is_not_taken_elsewhere(self) -> None:
        asked: list[bytes] = []

        async def elsewhere(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            asked.append(await reader.readuntil(b"\r\n\r\n"))
            writer.write(b"HTTP/1.1 302 Found\r\nLocation: /other\r\nContent-Length: 0\r\n\r\n")
            await writer.drain()
            writer.close()

        listener = await asyncio.start_server(elsewhere, "127.0.0.1", 0)
        async with listener:
            service = HttpService(f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}", "the-key")
            with pytest.raises(InvalidRequest, match="redirects to /other"):
                await service.attach_exec("ses_1", "e1")
            await service.close()
        assert len(asked) == 1

    async def test_every_connection_trusts_the_same(self, secured: Any) -> None:
        async with AsyncClient(secured.url) as client:
            session = await client.create()
            running = await session.start("cat", stdin=True)
            await running.write("secret")
            await running.close_stdin()
            assert (await running.wait(timeout_s=10)).output == "secret"
            await running.detach()

    @pytest.mark.parametrize(
        "url",
        [
            "",
            "127.0.0.1:8000",
            "ftp://x",
            "http://",
            "http://h/?a=b",
            "http://[::1",
            "http://h:99999",
            "http://h:0",
        ],
    )
    def test_what_is_not_a_url(self, url: str) -> None:
        with pytest.raises(InvalidRequest):
            HttpService(url)

    @pytest.mark.parametrize("key", ["a\nb", "ä", "", "the-key "])
    def test_what_is_not_a_key(self, key: str) -> None:
        with pytest.raises(InvalidRequest):
            HttpService("http://127.0.0.1:1", key)

    async def test_another_kind_of_server(self) -> None:
        async def page(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            body = b"<html>hello</html>"
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
            await writer.drain()
            writer.close()

        other = await asyncio.start_server(page, "127.0.0.1", 0)
        async with other, AsyncClient(f"http://127.0.0.1:{other.sockets[0].getsockname()[1]}") as client:
            with pytest.raises(SandlotError, match="Check that it is a Sandlot server"):
                await client.health()

    async def test_a_refusal_is_not_tried_again(self, client: AsyncClient, server: Any) -> None:
        asked = []
        server.fake.scripts.add("counted", lambda call: asked.append(call) or Reply(exit_code=9))
        session = await client.create()
        assert (await session.run("counted")).exit_code == 9
        assert len(asked) == 1

    async def test_a_file_problem_says_which(self, session: AsyncSession) -> None:
        with pytest.raises(FileProblem) as problem:
            await session.files.read("nowhere")
        assert problem.value.reason == "not_found"
        assert problem.value.details["request_id"]


def test_several_event_loops_with_one_client(server: Any) -> None:
    """Each loop gets connections of its own, and leaves none behind: warnings are errors here."""
    client = AsyncClient(server.url)

    async def use() -> str:
        session = await client.create()
        results = await asyncio.gather(*(session.run(f"echo {n}") for n in range(5)))
        return "".join(result.output for result in results)

    for _ in range(3):
        assert asyncio.run(use()) == "0\n1\n2\n3\n4\n"

    async def at_once() -> list[str]:
        return await asyncio.gather(use(), asyncio.to_thread(asyncio.run, use()))

    assert asyncio.run(at_once()) == ["0\n1\n2\n3\n4\n"] * 2
    asyncio.run(client.aclose())
