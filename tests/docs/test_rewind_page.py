"""Each Python block of docs/howto/rewind.md is a program that runs, against a server with btrfs; its output is compared."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.btrfs_storage import btrfs_storage
from tests.docs.test_agent_pages import MODEL, Program, programs_of
from tests.faults.rig import ServerProcess

PAGE = "howto/rewind.md"
# Does what the last message of the user asks for, and says the last line of what that printed.
SCRIPT = """\
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult

class Scripted(BaseChatModel):
    @property
    def _llm_type(self):
        return "scripted"

    def bind_tools(self, tools, **_):
        return self

    def _generate(self, messages, *_, **__):
        if isinstance(messages[-1], ToolMessage):
            answer = AIMessage(messages[-1].text.splitlines()[-1])
        else:
            commands = {"Write": "touch plan.md", "Delete": "rm plan.md", "List": "ls"}
            command = {"command": commands[messages[-1].text.split()[0]]}
            answer = AIMessage("", tool_calls=[{"name": "bash", "args": command, "id": "call-1"}])
        return ChatResult(generations=[ChatGeneration(message=answer)])

"""

pytestmark = [pytest.mark.docker, pytest.mark.slow]


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with btrfs_storage() as folder:
        server = ServerProcess(storage_dir=str(folder), workspace_store="btrfs")
        try:
            asyncio.run(server.start())
            yield server
        finally:
            asyncio.run(server.clean())


@pytest.mark.parametrize("program", programs_of(PAGE), ids=str)
def test_block_runs(program: Program, server: ServerProcess, tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT + program.text.replace(MODEL, "Scripted()")],
        env={**os.environ, "SANDLOT_URL": server.url},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == program.prints


def test_the_page_has_programs() -> None:
    assert len(programs_of(PAGE)) == 3
