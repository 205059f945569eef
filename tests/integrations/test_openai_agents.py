"""OpenAI Agents' sandbox contract on a real server, and an agent that works in one."""

from __future__ import annotations

import asyncio
import io
import json
import subprocess
import sys
import tarfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from agents import ModelResponse, RunConfig, Runner, Usage
from agents.models.interface import Model
from agents.sandbox import LocalSnapshotSpec, Manifest, SandboxAgent, SandboxRunConfig
from agents.sandbox.entries import File
from agents.sandbox.errors import (
    ExecNonZeroError,
    ExecTimeoutError,
    ExecTransportError,
    InvalidManifestPathError,
    WorkspaceArchiveReadError,
    WorkspaceArchiveWriteError,
    WorkspaceReadNotFoundError,
    WorkspaceRootNotFoundError,
    WorkspaceStartError,
    WorkspaceWriteTypeError,
)
from agents.sandbox.session import SandboxSession
from agents.sandbox.types import User
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

from sandlot import Client
from sandlot.domain.errors import SandboxLost, SessionEnded, Unavailable
from sandlot.integrations.openai_agents import (
    SandlotSandboxClient,
    SandlotSandboxClientOptions,
    SandlotSandboxSessionState,
)
from sandlot.integrations.sandboxes import run_on_client
from sandlot.testing.eventually import eventually
from tests.faults.rig import ServerProcess, free_port

pytestmark = pytest.mark.docker

Make = Callable[..., Any]


@pytest.fixture
def sandboxes(client: Client) -> SandlotSandboxClient:
    return SandlotSandboxClient(client)


@pytest.fixture
async def make(sandboxes: SandlotSandboxClient) -> AsyncIterator[Make]:
    """Makes started sessions; their sandboxes are gone after the test."""
    made: list[SandboxSession] = []

    async def create(**options: Any) -> SandboxSession:
        session = await sandboxes.create(**options)
        made.append(session)
        await session.start()
        return session

    yield create
    for session in made:
        await sandboxes.delete(session)


def id_of(session: SandboxSession) -> str:
    assert isinstance(session.state, SandlotSandboxSessionState)
    return session.state.sandlot_session


# --- commands -----------------------------------------------------------------------------------


async def test_a_command_has_its_output_and_exit_code(make: Make) -> None:
    session = await make()
    result = await session.exec("pwd; echo problem >&2; exit 3")
    assert (result.stdout, result.stderr, result.exit_code) == (b"/workspace\n", b"problem\n", 3)
    words = await session.exec("printf", "%s|", "a b", "$HOME", shell=False)
    assert words.stdout == b"a b|$HOME|"
    assert (await session.exec("no-such-program", shell=False)).exit_code == 127


async def test_a_timeout_is_the_frameworks_and_ends_the_command(make: Make) -> None:
    session = await make()
    with pytest.raises(ExecTimeoutError) as caught:
        await session.exec("echo early; sleep 777", timeout=3)
    assert caught.value.context["stdout"] == "early\n"

    async def gone() -> bool:
        return (await session.exec("pgrep", "-x", "-f", "sleep 777", shell=False)).exit_code == 1

    await eventually(gone, 10, "it still runs")


async def test_a_cancelled_command_is_ended(make: Make) -> None:
    session = await make()
    running = asyncio.create_task(session.exec("sleep", "778", shell=False))

    async def runs() -> bool:
        return (await session.exec("pgrep", "-x", "-f", "sleep 778", shell=False)).exit_code == 0

    async def gone() -> bool:
        return not await runs()

    await eventually(runs, 30, "it does not run")
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await eventually(gone, 30, "it still runs")


async def test_output_beyond_the_limit_is_cut_and_says_so(make: Make) -> None:
    session = await make()
    result = await session.exec("head -c 17000000 /dev/zero")
    half = b"\0" * (8 << 20)
    left_out = f"\n[… {17_000_000 - (16 << 20):,} bytes left out …]\n".encode()
    assert result.stdout == half + left_out + half
    assert b"the command wrote 17000000 bytes" in result.stderr


async def test_another_user_is_refused(make: Make, sandboxes: SandlotSandboxClient) -> None:
    session = await make()
    with pytest.raises(ValueError, match="single user"):
        await session.exec("id", user="root")
    with pytest.raises(ValueError, match="single user"):
        await session.read(Path("file"), user=User(name="root"))
    with pytest.raises(ValueError, match="single user"):
        await sandboxes.create(manifest=Manifest(users=[User(name="dev")]))


# --- files --------------------------------------------------------------------------------------


async def test_files_are_written_and_read(make: Make) -> None:
    session = await make()
    data = bytes(range(256)) * 8192
    await session.write(Path("folder/data.bin"), io.BytesIO(data))
    assert (await session.read(Path("folder/data.bin"))).read() == data
    assert (await session.read(Path("/workspace/folder/data.bin"))).read() == data
    assert await session.read_bounded(Path("folder/data.bin"), max_bytes=3) == b"\x00\x01\x02"
    assert [Path(entry.path).name for entry in await session.ls("folder")] == ["data.bin"]
    await session.rm("folder", recursive=True)
    with pytest.raises(WorkspaceReadNotFoundError):
        await session.read(Path("folder/data.bin"))


async def test_what_cannot_be_read_or_written_is_said_in_the_frameworks_words(make: Make) -> None:
    session = await make()
    await session.mkdir("folder")
    with pytest.raises(WorkspaceArchiveReadError):
        await session.read(Path("folder"))
    with pytest.raises(WorkspaceArchiveWriteError):
        await session.write(Path("folder"), io.BytesIO(b"x"))
    with pytest.raises(WorkspaceWriteTypeError):
        await session.write(Path("text"), io.StringIO("x"))


async def test_a_listing_has_everything_in_a_folder(make: Make) -> None:
    session = await make()
    await session.exec(
        'mkdir -m 750 folder; printf abc > .hidden; ln -s nowhere link; touch "two\nlines"; mkfifo pipe'
    )
    listed = {Path(entry.path).name: entry for entry in await session.ls(".")}
    assert {name: entry.kind.value for name, entry in listed.items()} == {
        "folder": "directory",
        ".hidden": "file",
        "link": "symlink",
        "two\nlines": "file",
        "pipe": "other",
    }
    assert listed[".hidden"].size == 3
    assert listed[".hidden"].path == "/workspace/.hidden"
    assert str(listed["folder"].permissions) == "drwxr-x---"
    with pytest.raises(ExecNonZeroError):
        await session.ls("missing")


async def test_no_link_leads_out_of_the_workspace(make: Make) -> None:
    session = await make()
    await session.exec("ln -s /etc/passwd leak; ln -s /tmp out")
    with pytest.raises(InvalidManifestPathError):
        await session.read(Path("leak"))
    with pytest.raises(InvalidManifestPathError):
        await session.write(Path("out/file"), io.BytesIO(b"x"))
    with pytest.raises(InvalidManifestPathError):
        await session.read(Path("/etc/passwd"))


async def test_the_manifest_is_there_when_it_starts(make: Make) -> None:
    manifest = Manifest(
        root="/workspace/project",
        entries={"src/main.py": File(content=b"print(6 * 7)\n")},
        environment={"value": {"GREETING": "hello"}},
    )
    session = await make(manifest=manifest)
    result = await session.exec("pwd; python3 src/main.py; echo $GREETING")
    assert result.stdout == b"/workspace/project\n42\nhello\n"
    await session.exec("rm -rf /workspace/project")
    with pytest.raises(WorkspaceRootNotFoundError):
        await session.exec("true")


# --- the workspace as an archive ------------------------------------------------------------------


async def test_a_workspace_is_carried_into_another_sandbox(make: Make) -> None:
    session = await make(manifest=Manifest(entries={"scratch": File(content=b"x", ephemeral=True)}))
    await session.exec(
        "mkdir -p a/b empty; echo deep > a/b/file; echo '#!/bin/sh' > tool; chmod 755 tool; ln -s b/file a/link; "
        "ln -s /workspace/a/b/file absolute; mkfifo pipe"
    )
    archive = await session.persist_workspace()
    other = await make()
    await other.hydrate_workspace(archive)
    archive.close()
    found = await other.exec(
        "find . -mindepth 1 | sort; cat a/link absolute; readlink absolute; stat -c %a tool"
    )
    assert found.stdout.decode().split() == [
        *("./a", "./a/b", "./a/b/file", "./a/link", "./absolute", "./empty", "./tool"),
        *("deep", "deep", "a/b/file", "755"),
    ]


@pytest.mark.parametrize(
    ("name", "kind", "target"),
    [("../outside", tarfile.REGTYPE, ""), ("/tmp/x", tarfile.REGTYPE, ""), ("link", tarfile.SYMTYPE, "/etc")],
)
async def test_an_archive_that_reaches_out_is_refused(
    make: Make, name: str, kind: bytes, target: str
) -> None:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        member = tarfile.TarInfo(name)
        member.type, member.linkname = kind, target
        tar.addfile(member)
    archive.seek(0)
    session = await make()
    with pytest.raises(WorkspaceArchiveWriteError):
        await session.hydrate_workspace(archive)
    with pytest.raises(WorkspaceArchiveWriteError):
        await session.hydrate_workspace(io.BytesIO(b"no tar at all"))
    assert (await session.exec("ls -A")).stdout == b""


# --- its life -------------------------------------------------------------------------------------

RESUME = """
import asyncio, json, sys
from sandlot import Client
from sandlot.integrations.openai_agents import SandlotSandboxClient

async def main():
    with Client(sys.argv[1]) as client:
        sandboxes = SandlotSandboxClient(client)
        session = await sandboxes.resume(sandboxes.deserialize_session_state(json.load(sys.stdin)))
        await session.start()
        print((await session.exec("cat note")).stdout.decode(), end="")
        await session.exec("echo changed > note")
        await session.aclose()

asyncio.run(main())
"""


async def test_another_process_finds_the_same_sandbox_by_its_state(
    make: Make, sandboxes: SandlotSandboxClient, agent_server: ServerProcess
) -> None:
    session = await make()
    await session.exec("echo kept > note")
    await session.aclose()  # leaves the sandbox
    state = json.dumps(sandboxes.serialize_session_state(session.state))
    command = [sys.executable, "-c", RESUME, agent_server.url]
    ran = await asyncio.to_thread(
        subprocess.run, command, input=state, capture_output=True, text=True, timeout=60
    )
    assert (ran.stdout, ran.stderr) == ("kept\n", "")
    assert (await session.exec("cat note")).stdout == b"changed\n"


async def test_deleting_ends_it_and_resuming_it_is_an_error(
    make: Make, sandboxes: SandlotSandboxClient, client: Client
) -> None:
    session = await make()
    assert await session.running()
    await sandboxes.delete(session)
    await sandboxes.delete(session)  # twice is no error
    assert not await session.running()
    with pytest.raises(SessionEnded):
        await asyncio.to_thread(client.get, id_of(session))
    with pytest.raises(ExecTransportError) as caught:
        await session.exec("true")
    assert isinstance(caught.value.__cause__, SessionEnded)
    with pytest.raises(WorkspaceStartError) as resumed:
        await sandboxes.resume(session.state)
    assert isinstance(resumed.value.__cause__, SessionEnded)


async def test_a_lost_sandbox_is_reported_and_not_replaced(
    make: Make, sandboxes: SandlotSandboxClient, client: Client, agent_server: ServerProcess
) -> None:
    session = await make()
    remote = await asyncio.to_thread(client.get, id_of(session))
    agent_server.docker("kill", agent_server.container_of(remote))
    with pytest.raises(ExecTransportError, match="sandbox_lost") as caught:
        await session.exec("true")
    assert isinstance(caught.value.__cause__, SandboxLost)
    assert not await session.running()
    with pytest.raises(WorkspaceStartError, match="sandbox_lost"):
        await sandboxes.resume(session.state)


async def test_a_sandbox_that_is_gone_is_filled_from_its_snapshot(
    make: Make, sandboxes: SandlotSandboxClient, tmp_path: Path
) -> None:
    session = await make(snapshot=LocalSnapshotSpec(base_path=tmp_path))
    await session.exec("echo kept > note")
    await session.stop()  # takes the snapshot
    assert session.state.snapshot_fingerprint

    # While it lives it is the one that is found; it is as the snapshot has it, so nothing is written anew.
    before, changed = id_of(session), (await session.exec("stat -c %.9Z note")).stdout
    alive = await sandboxes.resume(session.state)
    await alive.start()
    assert id_of(alive) == before
    assert (await alive.exec("stat -c %.9Z note")).stdout == changed

    await sandboxes.delete(session)
    resumed = await sandboxes.resume(session.state)
    try:
        await resumed.start()
        assert (await resumed.exec("cat note")).stdout == b"kept\n"
        assert id_of(resumed) != before
    finally:
        await sandboxes.delete(resumed)


async def test_a_create_that_is_cancelled_leaves_nothing(
    sandboxes: SandlotSandboxClient, client: Client
) -> None:
    def sessions() -> set[str]:
        return {session.id for session in client.sessions()}

    before = await asyncio.to_thread(sessions)
    cancelled = 0
    for step in range(8):  # at whichever point it then is
        creating = asyncio.create_task(sandboxes.create())
        await asyncio.sleep(step * 0.001)
        creating.cancel()
        try:
            await sandboxes.delete(await creating)
        except asyncio.CancelledError:
            cancelled += 1
        # The server has done what it was asked before by the time that it has done this.
        await sandboxes.delete(await sandboxes.create())
    assert cancelled

    async def clean() -> bool:
        return await asyncio.to_thread(sessions) <= before

    await eventually(clean, 60, "a session is left")


async def test_a_create_that_is_cancelled_as_it_ends_leaves_nothing(
    sandboxes: SandlotSandboxClient, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Made, and on its way from the loop of the client to that of the caller."""
    made: list[str] = []

    async def cut(asked: Client, work: Any) -> Any:
        result = await run_on_client(asked, work)
        if not made:
            made.append(result.id)
            raise asyncio.CancelledError
        return result

    monkeypatch.setattr("sandlot.integrations.openai_agents.client.run_on_client", cut)
    with pytest.raises(asyncio.CancelledError):
        await sandboxes.create()
    assert made
    with pytest.raises(SessionEnded):
        await asyncio.to_thread(client.get, made[0])


async def test_an_environment_that_is_not_there_and_a_server_that_is_away(
    sandboxes: SandlotSandboxClient,
) -> None:
    with pytest.raises(WorkspaceStartError, match="nowhere"):
        await sandboxes.create(options=SandlotSandboxClientOptions(environment="nowhere"))
    with Client(f"http://127.0.0.1:{free_port()}") as away, pytest.raises(WorkspaceStartError) as caught:
        await SandlotSandboxClient(away).create()
    assert isinstance(caught.value.__cause__, Unavailable)
    assert caught.value.retryable


# --- an agent -------------------------------------------------------------------------------------


class Scripted(Model):
    """Calls one tool after the other and then says what the last one answered."""

    def __init__(self, *commands: str) -> None:
        self.commands = list(commands)

    async def get_response(
        self, system_instructions: Any, input: Any, *args: Any, **kwargs: Any
    ) -> ModelResponse:
        if self.commands:
            arguments = json.dumps({"cmd": self.commands.pop(0)})
            call = ResponseFunctionToolCall(
                arguments=arguments,
                call_id=f"call-{len(self.commands)}",
                name="exec_command",
                type="function_call",
            )
            return ModelResponse([call], Usage(), None)
        text = ResponseOutputText(text=str(input[-1]["output"]), type="output_text", annotations=[])
        message = ResponseOutputMessage(
            id="message", content=[text], role="assistant", status="completed", type="message"
        )
        return ModelResponse([message], Usage(), None)

    def stream_response(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError("nothing here streams")


async def test_an_agent_works_in_a_sandbox_that_ends_with_its_run(
    sandboxes: SandlotSandboxClient, client: Client
) -> None:
    def sessions() -> set[str]:
        return {session.id for session in client.sessions()}

    before = await asyncio.to_thread(sessions)
    agent = SandboxAgent(name="coder", model=Scripted("echo $((6 * 7)) > answer", "cat answer; exit 3"))
    config = RunConfig(sandbox=SandboxRunConfig(client=sandboxes), tracing_disabled=True)
    result = await Runner.run(agent, "go", run_config=config)
    assert "42" in result.final_output
    assert "exited with code 3" in result.final_output
    assert await asyncio.to_thread(sessions) <= before


async def test_an_agent_works_in_a_session_that_it_is_given(make: Make) -> None:
    session = await make()
    await session.write(Path("question"), io.BytesIO(b"what is it"))
    config = RunConfig(sandbox=SandboxRunConfig(session=session), tracing_disabled=True)
    for command in ("cat question; echo seen > mark", "cat mark"):
        result = await Runner.run(
            SandboxAgent(name="coder", model=Scripted(command)), "go", run_config=config
        )
    assert "seen" in result.final_output
    assert await session.running()
