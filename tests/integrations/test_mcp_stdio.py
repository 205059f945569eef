"""``sandlot mcp``: a sandbox as tools over stdio, by the protocol's own client."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from jsonschema import validate
from mcp import Client as McpClient

from sandlot import Client
from sandlot.integrations.model_text import DEFAULT_CHARACTERS
from sandlot.testing.eventually import eventually
from tests.faults.rig import ServerProcess
from tests.integrations.mcp_clients.official import (
    in_a_task_of_its_own,
    over_stdio,
    progress_before_the_end,
    run,
    text_of,
)

# One loop for the module, so that most tests can share one process and its sandbox.
pytestmark = [pytest.mark.docker, pytest.mark.asyncio(loop_scope="module")]

TOOLS = {
    "execute",
    "read_output",
    "stop",
    "read_file",
    "write_file",
    "edit_file",
    "list_files",
    "search",
    "download",
    "reset",
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(agent_server: ServerProcess) -> AsyncIterator[McpClient]:
    async with in_a_task_of_its_own(over_stdio(agent_server.url)) as client:
        yield client


@pytest_asyncio.fixture(loop_scope="module")
async def mcp(agent_server: ServerProcess) -> AsyncIterator[McpClient]:
    async with in_a_task_of_its_own(over_stdio(agent_server.url)) as client:
        yield client


async def session_of(mcp: McpClient, script: str = "true") -> str:
    result = await mcp.call_tool("execute", {"command": script})
    assert result.structured_content is not None
    return str(result.structured_content["session_id"])


# --- the tools ----------------------------------------------------------------------------------


async def test_tools_say_what_they_take_give_and_do(shared: McpClient) -> None:
    tools = {tool.name: tool for tool in (await shared.list_tools()).tools}
    assert set(tools) == TOOLS
    for tool in tools.values():
        assert tool.description
        assert "  " not in tool.description, "text, not source"
        assert tool.title
        assert tool.annotations is not None
        assert tool.output_schema is not None
    assert {name for name, tool in tools.items() if tool.annotations.read_only_hint} == {
        "read_output",
        "read_file",
        "list_files",
        "search",
        "download",
    }
    assert tools["execute"].annotations.destructive_hint
    assert set(tools["execute"].input_schema["properties"]) == {"command", "timeout_s", "background"}
    assert shared.instructions is not None
    assert "/workspace" in shared.instructions  # the registry's prompt


async def test_the_shell_stays_and_what_it_answers_fits_its_schema(shared: McpClient) -> None:
    tools = {tool.name: tool for tool in (await shared.list_tools()).tools}
    await run(shared, "mkdir -p deep && cd /workspace/deep && export COLOUR=blue")
    result = await shared.call_tool("execute", {"command": "pwd; echo $COLOUR >&2; false"})
    assert not result.is_error, "a command that failed is a result"
    assert result.structured_content is not None
    validate(result.structured_content, tools["execute"].output_schema or {})
    assert result.structured_content["stdout"] == "/workspace/deep\nblue\n"
    assert result.structured_content["stderr"] == ""
    assert result.structured_content["exit_code"] == 1
    assert result.structured_content["verdict"] == "nonzero"
    *lines, code = text_of(result).splitlines()
    assert lines == ["/workspace/deep", "blue"]
    assert code == "[exit code 1]"


async def test_a_timeout_is_told_with_what_there_was(shared: McpClient) -> None:
    result = await shared.call_tool("execute", {"command": "echo so far; sleep 60", "timeout_s": 3})
    assert not result.is_error
    assert result.structured_content is not None
    assert result.structured_content["timed_out"]
    assert text_of(result).startswith("so far\n[timed out after")


async def test_files(shared: McpClient) -> None:
    tools = {tool.name: tool for tool in (await shared.list_tools()).tools}

    async def call(name: str, **arguments: object) -> tuple[str, dict[str, object]]:
        result = await shared.call_tool(name, arguments)
        assert not result.is_error, text_of(result)
        assert result.structured_content is not None
        validate(result.structured_content, tools[name].output_schema or {})
        return text_of(result), result.structured_content

    _, written = await call("write_file", path="src/a.txt", content="one\ntwo\nthree\n")
    assert written == {"path": "/workspace/src/a.txt", "type": "file", "size": 14}
    _, edited = await call("edit_file", path="src/a.txt", old="two", new="2")
    assert edited["replaced"] == 1
    text, read = await call("read_file", path="src/a.txt", offset=1, lines=1)
    assert text == "     2\t2\n[there is more; continue with offset=2]"
    assert read == {"path": "src/a.txt", "content": text, "lines": 1, "next_offset": 2}
    _, listing = await call("list_files", path="src")
    assert [entry["path"] for entry in listing["entries"]] == ["/workspace/src/a.txt"]
    _, found = await call("search", pattern="thr", path="src")
    assert found["matches"] == [{"path": "/workspace/src/a.txt", "line": 3, "text": "three"}]

    missing = "[not_found: /workspace/src/none.txt: no such file or directory]"
    for name, arguments, told in (
        ("edit_file", {"path": "src/a.txt", "old": "nowhere", "new": "x"}, "[invalid_request: "),
        ("read_file", {"path": "src/none.txt"}, missing),
        ("download", {"path": "src/none.txt"}, missing),
    ):
        problem = await shared.call_tool(name, arguments)
        assert problem.is_error
        assert text_of(problem).startswith(told)
        assert arguments["path"] in text_of(problem)


async def test_a_file_is_handed_out_as_what_it_is(shared: McpClient) -> None:
    content = bytes(range(256)) * 16
    await run(shared, "printf 'GIF89a' > /workspace/dot.gif")
    script = "import sys; open('/workspace/data.bin', 'wb').write(bytes(range(256)) * 16)"
    await run(shared, f'python3 -c "{script}"')
    picture = await shared.call_tool("download", {"path": "dot.gif"})
    assert [block.type for block in picture.content] == ["text", "image"]
    assert base64.b64decode(picture.content[1].data) == b"GIF89a"
    assert picture.content[1].mime_type == "image/gif"
    await run(shared, "echo none > '/workspace/no picture.png'")
    named = await shared.call_tool("download", {"path": "no picture.png"})
    assert [block.type for block in named.content] == ["text", "resource"]
    assert str(named.content[1].resource.uri) == "file:///workspace/no%20picture.png"
    other = await shared.call_tool("download", {"path": "data.bin"})
    assert [block.type for block in other.content] == ["text", "resource"]
    assert base64.b64decode(other.content[1].resource.blob) == content
    assert str(other.content[1].resource.uri) == "file:///workspace/data.bin"
    assert other.structured_content is not None
    assert other.structured_content["size"] == len(content)
    refused = await shared.call_tool("read_file", {"path": "data.bin"})
    assert refused.is_error
    assert "not a text file" in text_of(refused)


async def test_jobs_in_the_background(shared: McpClient) -> None:
    started = await shared.call_tool("execute", {"command": "echo begun; sleep 300", "background": True})
    assert started.structured_content is not None
    job = started.structured_content["job"]
    assert started.structured_content["exit_code"] is None

    async def begun() -> bool:
        result = await shared.call_tool("read_output", {"job": job})
        assert result.structured_content is not None
        assert result.structured_content["running"]
        return "begun" in result.structured_content["output"]

    await eventually(begun, 30, "no output of the job")
    stopped = await shared.call_tool("stop", {"job": job})
    assert stopped.structured_content is not None
    assert stopped.structured_content["signalled"] >= 1
    over = await shared.call_tool("read_output", {"job": job, "wait_s": 20})
    assert over.structured_content is not None
    assert not over.structured_content["running"]
    unknown = await shared.call_tool("stop", {"job": "job-none"})
    assert unknown.is_error
    assert job in text_of(unknown), "it says which there are"


async def test_progress_comes_while_the_command_runs(shared: McpClient) -> None:
    assert await progress_before_the_end(shared) == ["first", "last"]


async def test_five_megabytes_are_bounded_and_kept_in_a_file(shared: McpClient) -> None:
    result = await shared.call_tool(
        "execute", {"command": "head -c 5000000 /dev/zero | tr '\\0' x; echo; echo the end"}
    )
    assert result.structured_content is not None
    assert len(result.model_dump_json()) < 3 * DEFAULT_CHARACTERS
    assert result.structured_content["output_bytes"] == 5_000_009
    assert "the end" in text_of(result)
    path = result.structured_content["output_path"]
    assert path in text_of(result)
    assert (await run(shared, f"wc -c < {path}")).strip() == "5000009"


async def test_many_lines_of_progress_are_bounded_as_well(shared: McpClient) -> None:
    told: list[str] = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        told.append(str(message))

    await shared.call_tool("execute", {"command": "seq 1 500000"}, progress_callback=on_progress)
    # Its client hands progress to the callback on its own time, perhaps after the result.
    await eventually(lambda: bool(told) and told[-1].endswith("500000"))
    assert sum(map(len, told)) < 500_000, "of 3.4 MB"


async def test_a_wrong_name_and_wrong_arguments_are_errors_and_no_more(shared: McpClient) -> None:
    for name, arguments in (
        ("no_such_tool", {}),
        ("execute", {}),
        ("execute", {"command": "true", "timeout_s": 0}),
        ("execute", {"command": "true", "timeout_s": 100_000}),
        ("read_file", {"path": 7}),
        ("read_output", {"job": "job-x", "since": -1}),
    ):
        result = await shared.call_tool(name, arguments)
        assert result.is_error, (name, arguments)
        assert "Traceback" not in text_of(result)
    assert await run(shared, "echo fine") == "fine"


async def test_who_gives_a_call_up_ends_its_command(shared: McpClient, client: Client) -> None:
    session = client.get(await session_of(shared))
    call = asyncio.create_task(shared.call_tool("execute", {"command": "sleep 300"}))

    async def runs() -> bool:
        return any(summary.running for summary in session.execs())

    async def rests() -> bool:
        return not await runs()

    await eventually(runs, 30, "it has not begun")
    call.cancel()
    await asyncio.wait({call})
    await eventually(rests, 30, "it goes on although nobody wants it")


# --- what becomes of the sandbox ----------------------------------------------------------------


async def test_a_lost_sandbox_is_told_and_replaced_only_when_asked(
    mcp: McpClient, client: Client, agent_server: ServerProcess
) -> None:
    session_id = await session_of(mcp, "echo precious > work.txt")
    sandbox = client.get(session_id).info.sandbox_id
    container = agent_server.docker("ps", "-q", "--filter", f"label=sandlot.sandbox={sandbox}").strip()
    agent_server.docker("rm", "-f", container)

    for name, arguments in (
        ("execute", {"command": "ls"}),
        ("list_files", {}),
        ("execute", {"command": "ls"}),
    ):
        told = await mcp.call_tool(name, arguments)
        assert told.is_error
        assert "sandbox_lost" in text_of(told)
        assert "reset" in text_of(told)

    again = await mcp.call_tool("reset", {})
    assert again.structured_content == {"new_sandbox": True}
    assert "this is a new sandbox with the files in /workspace" in text_of(again)
    assert await run(mcp, "cat work.txt") == "precious"


async def test_a_session_that_ended_is_told_and_replaced_only_when_asked(
    mcp: McpClient, client: Client
) -> None:
    session_id = await session_of(mcp)
    client.get(session_id).delete()
    for _ in range(2):
        told = await mcp.call_tool("execute", {"command": "ls"})
        assert told.is_error
        assert "session_ended" in text_of(told)
        assert "reset" in text_of(told)
    again = await mcp.call_tool("reset", {})
    assert again.structured_content == {"new_sandbox": True}
    assert await run(mcp, "ls") == "(no output)"
    assert session_id not in [session.id for session in client.sessions()]


async def test_reset_is_a_new_shell_with_the_old_files(shared: McpClient) -> None:
    await run(shared, "cd /workspace; export COLOUR=blue; echo kept > file.txt")
    again = await shared.call_tool("reset", {})
    assert again.structured_content == {"new_sandbox": False}
    assert await run(shared, "echo [$COLOUR]; cat file.txt") == "[]\nkept"


async def test_a_thread_is_kept_for_the_next_process(
    agent_server: ServerProcess, thread: str, client: Client
) -> None:
    async with over_stdio(agent_server.url, "--thread", thread) as first:
        await run(first, "echo kept > file.txt")
    assert [session.thread for session in client.sessions(thread=thread)] == [thread]
    async with over_stdio(agent_server.url, "--thread", thread) as second:
        assert await run(second, "cat file.txt") == "kept"


async def test_an_environment_can_be_named(agent_server: ServerProcess, client: Client) -> None:
    async with over_stdio(agent_server.url, "--environment", "slim") as mcp:
        assert client.get(await session_of(mcp)).environment == "slim"
    async with over_stdio(agent_server.url, "--environment", "none-such") as mcp:
        told = await mcp.call_tool("execute", {"command": "true"})
        assert told.is_error
        assert "none-such" in text_of(told)
