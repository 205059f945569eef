"""/mcp of ``sandlot serve``: the tools over HTTP, whose sandbox they are about, and who is let in."""

from __future__ import annotations

import asyncio
import base64
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from jsonschema import validate
from mcp import MCPError

from sandlot import AsyncClient, Client
from sandlot.testing.eventually import eventually
from tests.faults.rig import ServerProcess
from tests.integrations.mcp_clients.official import over_http, progress_before_the_end, run, text_of

pytestmark = pytest.mark.docker

KEY = "the-key-of-this-server"
ACCEPT = {"Accept": "application/json, text/event-stream"}
# A request of the protocol's latest version, which needs no greeting before it.
MODERN = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}


def posted(method: str, **params: Any) -> dict[str, Any]:
    """What to give to httpx for one call."""
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": MODERN}}
    headers = ACCEPT | {"MCP-Protocol-Version": "2026-07-28", "Mcp-Method": method}
    if "name" in params:
        headers["Mcp-Name"] = params["name"]
    return {"json": body, "headers": headers}


# --- the tools ----------------------------------------------------------------------------------


async def test_tools_over_http(agent_server: ServerProcess, thread: str) -> None:
    async with over_http(agent_server.url, thread) as mcp:
        tools = {tool.name: tool for tool in (await mcp.list_tools()).tools}
        assert len(tools) == 10
        await run(mcp, "cd /tmp && export COLOUR=blue")
        result = await mcp.call_tool("execute", {"command": "pwd; echo $COLOUR"})
        assert result.structured_content is not None
        validate(result.structured_content, tools["execute"].output_schema or {})
        assert result.structured_content["stdout"] == "/tmp\nblue\n"
    async with over_http(agent_server.url, thread) as again:
        assert await run(again, "echo $COLOUR") == "blue", "the shell is the thread's, not the connection's"


async def test_progress_comes_while_the_command_runs(agent_server: ServerProcess, thread: str) -> None:
    async with over_http(agent_server.url, thread) as mcp:
        assert await progress_before_the_end(mcp) == ["first", "last"]


async def test_three_megabytes_are_handed_out(agent_server: ServerProcess, thread: str) -> None:
    async with over_http(agent_server.url, thread) as mcp:
        await run(mcp, "head -c 3000000 /dev/urandom > data.bin")
        result = await mcp.call_tool("download", {"path": "data.bin"})
        assert len(base64.b64decode(result.content[1].resource.blob)) == 3_000_000


async def test_two_threads_do_not_mix(agent_server: ServerProcess, thread: str) -> None:
    async with (
        over_http(agent_server.url, thread) as one,
        over_http(agent_server.url, f"{thread}/other") as other,
    ):

        async def wrote(mcp: Any, word: str) -> str:
            return await run(
                mcp, f"export WORD={word}; echo {word} > word.txt; sleep 0.2; cat word.txt; echo $WORD"
            )

        first, second = await asyncio.gather(wrote(one, "red"), wrote(other, "blue"))
        assert first.startswith("red\nred")
        assert second.startswith("blue\nblue")


async def test_it_is_the_thread_that_the_sdk_knows(
    agent_server: ServerProcess, thread: str, client: Client
) -> None:
    client.thread(thread).files.write("note.txt", "from the SDK")
    async with over_http(agent_server.url, thread) as mcp:
        assert await run(mcp, "cat note.txt") == "from the SDK"


async def test_many_first_calls_make_one_sandbox(
    agent_server: ServerProcess, thread: str, client: Client
) -> None:
    async with over_http(agent_server.url, thread) as mcp:
        results = await asyncio.gather(*(mcp.call_tool("list_files", {}) for _ in range(6)))
    assert not any(result.is_error for result in results)
    assert len(list(client.sessions(thread=thread))) == 1


async def test_without_a_thread_it_says_which_header_is_missing(
    agent_server: ServerProcess, client: Client
) -> None:
    before = {session.id for session in client.sessions()}
    for headers in ({}, {"X-Thread-Id": ""}):
        async with over_http(agent_server.url, None, **headers) as mcp:
            assert len((await mcp.list_tools()).tools) == 10
            for name, arguments in (("execute", {"command": "true"}), ("reset", {})):
                result = await mcp.call_tool(name, arguments)
                assert result.is_error
                assert "X-Thread-Id" in text_of(result)
    assert {session.id for session in client.sessions()} <= before


async def test_a_lost_sandbox_is_told_and_replaced_only_when_asked(
    agent_server: ServerProcess, thread: str, client: Client
) -> None:
    async with over_http(agent_server.url, thread) as mcp:
        await run(mcp, "echo precious > work.txt")
        async with AsyncClient(agent_server.url) as sdk:
            agent_server.docker("rm", "-f", agent_server.container_of(await sdk.thread(thread)))
        for _ in range(2):
            told = await mcp.call_tool("execute", {"command": "ls"})
            assert told.is_error
            assert "sandbox_lost" in text_of(told)
            assert "reset" in text_of(told)
        again = await mcp.call_tool("reset", {})
        assert again.structured_content == {"new_sandbox": True}
        assert await run(mcp, "cat work.txt") == "precious"


async def test_a_sandbox_made_anew_after_its_end_is_told(
    agent_server: ServerProcess, thread: str, client: Client
) -> None:
    async with over_http(agent_server.url, thread) as mcp:
        await run(mcp, "touch work.txt")
        client.thread(thread).delete()
        assert "a new, empty sandbox was created" in await run(mcp, "ls")
        assert await run(mcp, "ls") == "(no output)"


@pytest.mark.parametrize("version", ["2025-06-18", "2026-07-28"])
async def test_who_leaves_ends_the_command(
    agent_server: ServerProcess, thread: str, client: Client, version: str
) -> None:
    session = client.thread(thread)

    async def runs() -> bool:
        return any(summary.running for summary in session.execs())

    async def rests() -> bool:
        return not await runs()

    request = posted("tools/call", name="execute", arguments={"command": "sleep 300"})
    if version < "2026":
        del request["json"]["params"]["_meta"]
    request["headers"] |= {"MCP-Protocol-Version": version, "X-Thread-Id": thread}
    async with httpx.AsyncClient(base_url=agent_server.url, timeout=30) as http:
        call = asyncio.create_task(http.post("/mcp", **request))
        await eventually(runs, 30, "it has not begun")
        call.cancel()
        await asyncio.wait({call})
    await eventually(rests, 30, "it goes on although nobody waits for it")


# --- at the edge --------------------------------------------------------------------------------


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def closed_server() -> AsyncIterator[ServerProcess]:
    """With a key, and known by a name."""
    server = ServerProcess(api_key=KEY, allowed_hosts="sandbox.example", drain_timeout_s="1")
    try:
        await server.start()
        yield server
    finally:
        await server.clean()


async def test_who_has_no_key_is_refused(closed_server: ServerProcess, agent_server: ServerProcess) -> None:
    call = posted("tools/call", name="execute", arguments={"command": "true"})
    async with httpx.AsyncClient(base_url=closed_server.url, timeout=30) as http:
        for wrong in ({}, {"Authorization": "Bearer another-key-than-that"}, {"X-API-Key": KEY[:-1]}):
            refused = await http.post(
                "/mcp", **(call | {"headers": call["headers"] | wrong | {"X-Thread-Id": "t"}})
            )
            assert refused.status_code == 401
            assert refused.json()["code"] == "unauthorized"
    opening = over_http(closed_server.url, "t", Authorization="Bearer another-key-than-that")
    with pytest.raises(ExceptionGroup) as refused_by_the_edge:
        await opening.__aenter__()
    assert refused_by_the_edge.group_contains(MCPError)
    async with AsyncClient(closed_server.url, api_key=KEY) as sdk:
        assert [session async for session in sdk.sessions()] == []


async def test_who_has_the_key_comes_in_by_the_servers_name(closed_server: ServerProcess) -> None:
    """The protocol's library knows loopback alone, and would refuse names that the operator allows."""
    headers = {"Authorization": f"Bearer {KEY}", "Host": "sandbox.example"}
    async with over_http(closed_server.url, "by-name", **headers) as mcp:
        assert await run(mcp, "echo in") == "in\n[a new, empty sandbox was created for this call]"
    async with AsyncClient(closed_server.url, api_key=KEY) as sdk:
        await (await sdk.thread("by-name")).delete()


async def test_pages_of_others_are_refused(agent_server: ServerProcess) -> None:
    call = posted("tools/list")
    async with httpx.AsyncClient(base_url=agent_server.url, timeout=30) as http:
        for foreign in ({"Origin": "http://evil.example"}, {"Host": "evil.example"}):
            refused = await http.post("/mcp", **(call | {"headers": call["headers"] | foreign}))
            assert refused.status_code == 403
        own = await http.post("/mcp", **(call | {"headers": call["headers"] | {"Origin": agent_server.url}}))
        assert own.status_code == 200
        assert own.headers["content-type"] == "application/json"
        assert len(own.json()["result"]["tools"]) == 10


async def test_a_body_is_bounded(agent_server: ServerProcess) -> None:
    arguments = {"path": "big.txt", "content": "x" * (4 * 1024 * 1024)}
    call = posted("tools/call", name="write_file", arguments=arguments)

    async def piecewise() -> AsyncIterator[bytes]:
        yield json.dumps(call["json"]).encode()

    async with httpx.AsyncClient(base_url=agent_server.url, timeout=30) as http:
        announced = await http.post("/mcp", **call)
        assert announced.status_code == 413
        headers = call["headers"] | {"Content-Type": "application/json"}
        unannounced = await http.post("/mcp", content=piecewise(), headers=headers)
        assert unannounced.status_code == 413


async def test_only_posts_are_answered_and_only_there(agent_server: ServerProcess) -> None:
    async with httpx.AsyncClient(base_url=agent_server.url, timeout=30) as http:
        for method in ("GET", "DELETE", "PUT"):
            refused = await http.request(method, "/mcp", headers=ACCEPT)
            assert refused.status_code == 405
            assert refused.headers["allow"] == "POST"
        assert (await http.post("/mcp/made-up", **posted("tools/list"))).status_code == 404
        typed = ACCEPT | {"Content-Type": "application/json"}
        broken = await http.post("/mcp", content=b"{", headers=typed)
        assert (broken.status_code, broken.json()["error"]["code"]) == (400, -32700)
        figures = (await http.get("/metrics")).text
    assert 'sandlot_http_requests_total{method="DELETE",route="/mcp",status="405"}' in figures
    assert "made-up" not in figures


async def test_a_server_that_stops_does_not_wait_for_a_long_call(closed_server: ServerProcess) -> None:
    # The last that is asked of this server.
    headers = {"Authorization": f"Bearer {KEY}"}
    async with AsyncClient(closed_server.url, api_key=KEY) as sdk:
        session = await sdk.thread("long")

        async def runs() -> bool:
            return any(summary.running for summary in await session.execs())

        async with over_http(closed_server.url, "long", **headers) as mcp:
            call = asyncio.create_task(mcp.call_tool("execute", {"command": "sleep 300"}))
            await eventually(runs, 30, "it has not begun")
            assert await closed_server.terminate() == 0
            with pytest.raises(MCPError):
                await call


# --- without the extra --------------------------------------------------------------------------


async def test_a_server_without_the_extra_serves_the_rest(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\nsys.modules['mcp'] = sys.modules['mcp_types'] = None\n"
    )
    server = ServerProcess(pool_size="1", max_pool_size="1")
    server.environ["PYTHONPATH"] = str(tmp_path)
    try:
        await server.start()
        async with httpx.AsyncClient(base_url=server.url, timeout=30) as http:
            assert (await http.post("/mcp", **posted("tools/list"))).status_code == 404
        async with server.client() as sdk, await sdk.create() as session:
            assert (await session.run("echo served")).stdout == "served\n"
        assert "mcp=not installed" in server.log.read_text().replace("'", "")
    finally:
        await server.clean()


def test_the_library_is_imported_by_who_asks_for_it() -> None:
    """Half a second that a server's start, and a command line's, shall not cost."""
    script = "import sys, sandlot.wiring, sandlot.cli.main; sys.exit('mcp' in sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=90)
