"""``sandlot mcp``: how the process begins and ends, and that it leaves nothing."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandlot import Client
from sandlot.testing.eventually import eventually
from tests.faults.rig import ServerProcess
from tests.integrations.mcp_clients.official import BareLines, environ
from tests.leaks import docker_json

pytestmark = pytest.mark.docker


@pytest.fixture
def bare(agent_server: ServerProcess) -> Iterator[BareLines]:
    client = BareLines.start(agent_server.url)
    yield client
    if client.process.poll() is None:
        client.process.kill()
        client.ended()


def own_sessions(client: Client) -> dict[str, str]:
    """Of the processes, by id: those of threads that they named themselves."""
    return {s.id: s.thread for s in client.sessions() if s.thread and s.thread.startswith("mcp-")}


@pytest.mark.parametrize("how", ["end of input", "SIGTERM", "SIGINT", "SIGHUP", "end of input, deaf"])
def test_however_it_ends_nothing_is_left(
    bare: BareLines, client: Client, agent_server: ServerProcess, how: str
) -> None:
    session_id = bare.call("execute", command="touch file.txt")["structuredContent"]["session_id"]
    sandbox = client.get(session_id).info.sandbox_id
    assert sandbox in agent_server.containers()
    if how.endswith("deaf"):  # more than a pipe holds, and nobody reads it
        for _ in range(6):
            bare.begin("tools/call", {"name": "execute", "arguments": {"command": "seq 1 10000"}})
    bare.begin("tools/call", {"name": "execute", "arguments": {"command": "sleep 300"}})
    assert bare.process.stdin is not None
    if how.startswith("end of input"):
        bare.process.stdin.close()
    else:
        os.kill(bare.process.pid, signal.Signals[how])
    if how.endswith("deaf"):
        asyncio.run(_gone(client, session_id))
        bare.process.stdout and bare.process.stdout.read()
    code, rest, said = bare.ended()
    assert code == 0, said
    assert all(json.loads(line)["jsonrpc"] == "2.0" for line in rest.splitlines())
    assert "Traceback" not in said
    assert session_id not in own_sessions(client)
    asyncio.run(eventually(lambda: sandbox not in agent_server.containers(), 60, "its sandbox is gone"))


async def _gone(client: Client, session_id: str) -> None:
    async def gone() -> bool:
        return session_id not in own_sessions(client)

    await eventually(gone, 30, "the sandbox is held by a client that does not read")


def test_who_only_looks_has_no_sandbox_made(bare: BareLines, client: Client) -> None:
    before = own_sessions(client)
    assert bare.ask("tools/list", {})["tools"]
    assert own_sessions(client) == before


def test_ended_while_its_sandbox_is_being_made(bare: BareLines, client: Client) -> None:
    before = own_sessions(client)
    bare.begin("tools/call", {"name": "execute", "arguments": {"command": "true"}})
    assert bare.process.stdin is not None
    bare.process.stdin.close()
    code, _, said = bare.ended()
    assert code == 0, said
    assert own_sessions(client) == before


def test_without_a_server_a_worker_in_the_process(client: Client) -> None:
    owner = f"test-{secrets.token_hex(4)}"
    with tempfile.TemporaryDirectory(prefix="sandlot-test-") as folder:
        bare = BareLines.start(
            "http://127.0.0.1:9",
            "--local",
            SANDLOT_WORKER_ID=owner,
            SANDLOT_DATA_DIR=folder,
            SANDLOT_LOG_LEVEL="debug",
        )
        result = bare.call("execute", command="echo here")
        assert result["structuredContent"]["stdout"] == "here\n"
        assert len(_containers_of(owner)) == 1
        os.kill(bare.process.pid, signal.SIGTERM)
        code, _, said = bare.ended()
        assert code == 0, said
        assert _containers_of(owner) == []


def _containers_of(owner: str) -> list[object]:
    return [row["Names"] for row in docker_json("ps", "-a") if f"sandlot.owner={owner}" in str(row["Labels"])]


def test_a_server_that_is_not_there_is_told_at_once() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "sandlot", "--url", "http://127.0.0.1:9", "mcp"],
        capture_output=True,
        text=True,
        env=environ(),
        stdin=subprocess.DEVNULL,
        timeout=90,
    )
    assert ran.returncode == 1
    assert ran.stdout == ""
    assert "Cannot connect" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_without_the_extra_it_says_how_to_get_it(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['mcp'] = None\n")
    ran = subprocess.run(
        [sys.executable, "-m", "sandlot", "mcp"],
        capture_output=True,
        text=True,
        env=environ(PYTHONPATH=str(tmp_path)),
        stdin=subprocess.DEVNULL,
        timeout=90,
    )
    assert ran.returncode == 1
    assert "pip install '.[mcp]'" in ran.stderr
    assert "Traceback" not in ran.stderr
