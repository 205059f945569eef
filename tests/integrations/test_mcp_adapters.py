"""LangChain's MCP adapters, on the protocol's library of version 1, against our server of version 2.

They cannot be installed beside each other, so these clients are programs of another environment.
"""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sandlot import Client
from sandlot.testing.eventually import eventually
from tests.faults.rig import ServerProcess
from tests.integrations.mcp_clients.official import command, environ

pytestmark = pytest.mark.docker

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv-mcp1" / "bin" / "python"
CLIENTS = Path(__file__).parent / "mcp_clients"
PAGE = (ROOT / "docs" / "howto" / "mcp.md").read_text()


def printed(*arguments: str | Path) -> str:
    assert PYTHON.exists(), "there is no .venv-mcp1: run make venv"
    process = subprocess.run([PYTHON, *arguments], capture_output=True, text=True, env=environ(), timeout=150)
    assert process.returncode == 0, process.stderr
    return process.stdout


def ran(script: str, connection: dict[str, Any]) -> Any:
    return json.loads(printed(CLIENTS / script, json.dumps(connection)))


def over_stdio(server: ServerProcess, *options: str) -> dict[str, Any]:
    program, *arguments = command(server.url, *options)
    assert program == sys.executable
    return {"transport": "stdio", "command": program, "args": arguments, "env": environ()}


def over_http(server: ServerProcess, thread: str) -> dict[str, Any]:
    headers = {"X-Thread-Id": thread, "Authorization": "Bearer a-key-that-is-not-asked-for"}
    return {"transport": "http", "url": f"{server.url}/mcp", "headers": headers}


@pytest.mark.parametrize("transport", ["stdio", "http"])
def test_all_that_the_adapters_make_of_us(
    agent_server: ServerProcess, client: Client, thread: str, transport: str
) -> None:
    connection = over_stdio(agent_server) if transport == "stdio" else over_http(agent_server, thread)
    found = ran("langchain_adapters.py", connection)
    assert found["versions"]["mcp"].startswith("1.")
    assert found["versions"]["langchain-mcp-adapters"] == "0.3.2"
    assert {"execute", "read_file", "write_file", "reset"} <= set(found["tools"])
    calls = found["calls"]
    assert calls["get"]["data"]["stdout"] == "begin\n/workspace/deep\nblue\n"
    assert "begin" in found["progress"], "told before the end, seconds later"
    assert calls["write"]["data"] == {"path": "/workspace/a.txt", "type": "file", "size": 5}
    assert calls["read"]["text"] == "     1\twords"
    assert calls["missing"]["status"] == "error"
    assert "not_found" in calls["missing"]["text"]
    assert calls["failed"]["status"] == "success", "a command that failed is a result"
    assert calls["failed"]["data"]["exit_code"] == 1
    assert calls["wrong"]["status"] == "error"
    session_id = calls["failed"]["data"]["session_id"]

    async def gone() -> bool:
        return session_id not in [session.id for session in client.sessions()]

    if transport == "http":
        assert not asyncio.run(gone()), "a thread has its own"
    else:  # the adapters give a process two seconds to end; what it asked of the server is done all the same
        asyncio.run(eventually(gone, 30, "a process ends its sandbox"))


def test_calls_apart_meet_in_the_thread(agent_server: ServerProcess, thread: str) -> None:
    """The adapters' default: each call has a connection, and over stdio a process, of its own."""
    set_, got = ran("calls_apart.py", over_http(agent_server, thread))
    assert set_ == "set"
    assert got == "[blue]"
    _, again = ran("calls_apart.py", over_stdio(agent_server, "--thread", thread))
    assert again == "[blue]"


def test_calls_apart_without_a_thread_do_not_meet(agent_server: ServerProcess) -> None:
    """What the documentation warns of."""
    _, got = ran("calls_apart.py", over_stdio(agent_server))
    assert got == "[]"


# --- what the documentation says ----------------------------------------------------------------


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def test_the_documented_program_runs(agent_server: ServerProcess, client: Client, thread: str) -> None:
    (program,) = (block for block in blocks("python") if "langchain_mcp_adapters" in block)
    program = program.replace("http://127.0.0.1:8000", agent_server.url).replace("conversation-7", thread)
    assert thread in program
    assert printed("-c", program) == "Ada in /tmp\n"


@pytest.mark.parametrize("which", [0, 1])
def test_the_documented_configurations_connect(agent_server: ServerProcess, thread: str, which: int) -> None:
    text = blocks("json")[which].replace("http://127.0.0.1:8000", agent_server.url)
    connection = json.loads(text.replace("my-conversation", thread))["mcpServers"]["sandlot"]
    if which == 0:
        # As a client does that has our PATH.
        connection["command"] = str(Path(sys.executable).parent / connection["command"])
    connection["transport"] = connection.pop("type", "stdio")
    set_, _ = ran("calls_apart.py", connection)
    assert set_ == "set"
