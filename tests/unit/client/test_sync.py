"""The same without await, and the first interface."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import sandlot
from sandlot import (
    AsyncClient,
    AsyncExec,
    AsyncFiles,
    AsyncSession,
    AsyncShell,
    BatchSandboxClient,
    Client,
    Exec,
    Exited,
    Files,
    Output,
    SandboxClient,
    Session,
    Shell,
)
from sandlot.domain.errors import InvalidRequest, SessionEnded
from sandlot.testing.fake import FakeService, Reply


@pytest.fixture
def client(server: Any) -> Iterator[Client]:
    with Client(server.url) as client:
        yield client


def test_run_start_stream_shell_files(client: Client, tmp_path: Path) -> None:
    with client.create(env={"A": "b"}) as session:
        assert session.run("echo $A", check=True).output == "b\n"
        events = list(session.stream("echo x; exit 2"))
        assert [event.data for event in events if isinstance(event, Output)] == [b"x\n"]
        assert isinstance(events[-1], Exited)
        running = session.start("cat", stdin=True)
        running.write("hello")
        running.close_stdin()
        assert running.wait(timeout_s=10).stdout == "hello"
        assert [event.data for event in running.events() if isinstance(event, Output)] == [b"hello"]
        shell = session.shell("s")
        shell.run("X=1")
        assert (shell.run("echo $X").output, shell.name) == ("1\n", "s")
        session.files.write("d/f", iter([b"a", b"b"]))
        assert b"".join(session.files.stream("d/f")) == b"ab"
        session.files.download("d", tmp_path / "d")
        assert (tmp_path / "d" / "f").read_bytes() == b"ab"
        with session.files.watch() as changes:
            session.files.write("seen", "x")
            assert next(changes).path.endswith("seen")
        assert session.id in {other.id for other in client.sessions()}
        assert session.update(metadata={"k": "v"}).info.metadata == {"k": "v"}
    with pytest.raises(SessionEnded):
        session.run("true")
    assert client.health().ready
    assert client.run_in_thread("sync-thread", "echo hi").output == "hi\n"
    assert client.thread("sync-thread").created is False


def test_an_iterator_that_the_loop_itself_collects(client: Client) -> None:
    """The garbage collector runs on any thread, also on the one that would have to close the stream."""
    session = client.create()
    stream = session.stream("echo a; sleep 30", exec_id="half-read", output_limit=None)
    next(stream)
    kept = [stream]
    del stream

    async def collect() -> None:
        kept.clear()

    running = asyncio.run_coroutine_threadsafe(collect(), client._loop._loop)
    running.result(timeout=10)
    assert client.health().ready
    session.exec("half-read").kill()


def test_a_blocking_call_on_its_own_loop_is_refused(client: Client) -> None:
    async def call() -> None:
        client.health()

    with pytest.raises(RuntimeError, match="would deadlock"):
        asyncio.run_coroutine_threadsafe(call(), client._loop._loop).result(timeout=10)


def test_an_iterator_that_is_left_is_closed(client: Client) -> None:
    session = client.create()
    for event in session.stream("echo a; sleep 0.2; echo b", exec_id="left"):
        if isinstance(event, Output):
            break
    assert session.exec("left").wait().output == "a\nb\n"


async def test_inside_a_running_loop(server: Any) -> None:
    client = Client(server.url)
    assert client.create().run("echo blocking").output == "blocking\n"
    client.close()


def test_from_many_threads(client: Client) -> None:
    session = client.create()
    heard: list[str] = []
    threads = [
        threading.Thread(target=lambda n=n: heard.append(session.run(f"echo {n}").output)) for n in range(10)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(heard) == sorted(f"{n}\n" for n in range(10))


def test_closing(server: Any) -> None:
    before = threading.active_count()
    client = Client(server.url)
    session = client.create()
    client.close()
    client.close()
    assert threading.active_count() <= before
    with pytest.raises(RuntimeError, match="closed"):
        session.run("true")


def test_everything_async_is_there_without_await() -> None:
    pairs = [
        (AsyncClient, Client),
        (AsyncSession, Session),
        (AsyncExec, Exec),
        (AsyncShell, Shell),
        (AsyncFiles, Files),
    ]
    for there, here in pairs:
        names = {name for name in vars(there) if not name.startswith("_")} - {"aclose", "opened"}
        assert names <= set(dir(here)), names - set(dir(here))
    assert Session.run.__doc__ == AsyncSession.run.__doc__


SCRIPT = """
import sys, os
from sandlot import Client
client = Client(sys.argv[1])
session = client.create()
assert session.run("echo parent").output == "parent\\n"
terminal = session.start("cat", stdin=True)
stream = session.stream("yes", output_limit=None)
next(stream)
if sys.argv[2] == "fork":
    child = os.fork()
    if child == 0:
        assert session.run("echo child").output == "child\\n"
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert session.run("echo parent").output == "parent\\n"
print("done")
"""


@pytest.mark.parametrize("how", ["plain", "fork"])
def test_an_interpreter_ends_quietly_without_close(server: Any, how: str) -> None:
    command = [sys.executable, "-W", "error", "-X", "dev", "-c", SCRIPT, server.url, how]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (ran.returncode, ran.stdout) == (0, "done\n"), ran.stderr
    assert "Warning" not in ran.stderr, ran.stderr
    assert "Traceback" not in ran.stderr, ran.stderr


LOCAL_SCRIPT = """
import asyncio, sys, types
from pathlib import Path
from sandlot import Client
from sandlot.client.sync import background
from sandlot.testing.fake import FakeService

background.CLEANUP_S = 4.0 if sys.argv[2] == "hangs" else 25.0

class Local(FakeService):
    async def close(self):
        await asyncio.sleep(0.1)
        await asyncio.to_thread(Path(sys.argv[1]).open("a").write, "closed ")
        await super().close()
        if sys.argv[2] == "fails":
            raise RuntimeError("nobody hears this")
        if sys.argv[2] == "hangs":
            await asyncio.sleep(3600)

async def local_service():
    return Local()

sys.modules["sandlot.wiring"] = types.SimpleNamespace(local_service=local_service)
client = Client.local()
session = client.create()
stream = session.stream("yes", output_limit=None)
next(stream)
if sys.argv[2] == "closed":
    client.close()
if sys.argv[2] == "dropped":
    del stream, session, client
print("done")
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", ["plain", "closed", "dropped", "fails", "hangs"])
def test_a_local_client_is_closed_when_the_program_ends(tmp_path: Path, how: str) -> None:
    told = tmp_path / "told"
    ran = subprocess.run(
        [sys.executable, "-c", LOCAL_SCRIPT, told, how], capture_output=True, text=True, timeout=60
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "done\n", "")
    assert told.read_text() == "closed "


def test_import_is_light() -> None:
    script = """
import sys, sandlot
heavy = {"httpx", "rich", "typer", "pydantic", "websockets", "msgspec", "asyncio", "fastapi"}
assert not heavy & set(sys.modules), heavy & set(sys.modules)
from sandlot import *
assert not {"rich", "typer", "pydantic", "fastapi", "yaml"} & set(sys.modules)
assert errors.NotFound
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_every_exported_name_is_there() -> None:
    for name in sandlot.__all__:
        assert getattr(sandlot, name) is not None
        assert name in dir(sandlot)
    with pytest.raises(AttributeError, match="nonsense"):
        sandlot.nonsense  # noqa: B018
    assert (Path(sandlot.__file__).parent / "py.typed").exists()


class TestSettings:
    def test_from_the_environment(self, guarded: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("SANDLOT_URL", guarded.url)
        monkeypatch.setenv("SANDLOT_API_KEY", "the-key")
        with SandboxClient() as sandbox:
            assert sandbox.execute("echo found")["output"] == "found\n"

    async def test_a_given_service_stays_open(self) -> None:
        fake = FakeService()
        async with AsyncClient(service=fake) as client:
            assert client.service is fake
            await client.create()
        assert (await fake.health()).ready

    async def test_local_is_opened_once_by_its_first_use(self, monkeypatch: pytest.MonkeyPatch) -> None:
        opened = []

        class Wiring:
            @staticmethod
            async def local_service(**options: Any) -> FakeService:
                opened.append(options)
                await asyncio.sleep(0.01)
                return FakeService()

        monkeypatch.setitem(sys.modules, "sandlot.wiring", Wiring)
        client = AsyncClient.local(pool_size=1)
        with pytest.raises(InvalidRequest, match="not open"):
            _ = client.service
        sessions = await asyncio.gather(*(client.create() for _ in range(3)))
        assert opened == [{"pool_size": 1}]
        assert (await sessions[0].run("echo local")).output == "local\n"
        service = client.service
        await client.aclose()
        assert not (await service.health()).ready


class TestSeedNames:
    def test_sandbox_client(self, server: Any, tmp_path: Path) -> None:
        (tmp_path / "script").write_text("echo from a file")
        with SandboxClient(server.url) as sandbox:
            created = sandbox.create_session()
            assert created == {
                "session_id": sandbox.session_id,
                "status": "created",
                "user": "sandboxuser",
                "workspace": "/workspace",
            }
            sandbox.upload_file(tmp_path / "script", "run")
            result = sandbox.execute("cat run")
            assert (result["output"], result["exit_code"]) == ("echo from a file", 0)
            assert [entry.name for entry in sandbox.list_files()] == ["run"]
            sandbox.download_file("run", tmp_path / "back")
            assert (tmp_path / "back").read_text() == "echo from a file"
            assert sandbox.execute("sleep 20", timeout=0.1).timed_out
        with Client(server.url) as client, pytest.raises(SessionEnded):
            client.get(created["session_id"])

    def test_without_a_context(self, server: Any) -> None:
        sandbox = SandboxClient(server.url)
        assert sandbox.execute("echo hi")["output"] == "hi\n"
        first = sandbox.session_id
        sandbox.cleanup()
        assert sandbox.session_id is None
        assert sandbox.execute("echo again").session_id != first
        sandbox.cleanup()
        sandbox.close()

    def test_a_thread_stays_and_a_session_can_be_taken_up(self, server: Any) -> None:
        with SandboxClient(server.url, thread_id="seed-thread") as sandbox:
            sandbox.execute("echo x > kept")
        with SandboxClient(server.url, thread_id="seed-thread") as sandbox:
            assert sandbox.create_session()["status"] == "existing"
            assert sandbox.execute("cat kept")["output"] == "x\n"
            session = sandbox.session_id
        with SandboxClient(server.url, session_id=session) as other:
            assert other.execute("cat kept")["output"] == "x\n"
            other.cleanup()
        with Client(server.url) as client, pytest.raises(SessionEnded):
            client.get(str(session))

    def test_batch_is_steps_in_one_sandbox(self, server: Any) -> None:
        told: list[tuple[int, int]] = []
        batch = BatchSandboxClient(server.url)
        results = batch.execute_batch(
            ["echo 1 > f", "cat f", "false"], progress=lambda done, total: told.append((done, total))
        )
        assert [result["output"] for result in results] == ["", "1\n", ""]
        assert [result.exit_code for result in results] == [0, 0, 1]
        assert told == [(1, 3), (2, 3), (3, 3)]
        assert batch.execute_batch([]) == []

    def test_batch_in_parallel(self, server: Any) -> None:
        now, most = [0], [0]

        async def busy(_: Any) -> Reply:
            now[0] += 1
            most[0] = max(most[0], now[0])
            for _ in range(200):  # until all that may come have come, however slow the machine is
                if most[0] >= 3:
                    break
                await asyncio.sleep(0.02)
            await asyncio.sleep(0.05)
            now[0] -= 1
            return Reply(stdout="done")

        server.fake.scripts.add("busy", busy)
        batch = BatchSandboxClient(server.url, max_parallel=3)
        results = batch.execute_batch(["busy"] * 8, parallel=True, progress=True)
        assert [result.output for result in results] == ["done"] * 8
        assert len({result.session_id for result in results}) == 8
        assert most == [3]

    def test_one_that_fails_ends_the_others(self, server: Any) -> None:
        batch = BatchSandboxClient(server.url)
        with pytest.raises(InvalidRequest):
            batch.execute_batch(["sleep 30", "x\0y"], parallel=True)
