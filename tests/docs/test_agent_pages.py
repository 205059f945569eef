"""Each Python block of the pages about agents is a program that runs, against a real server; printed output is compared.

The pages name a model that needs a key. In its place a scripted one is put, and nothing else is changed.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.faults.rig import ServerProcess

ROOT = Path(__file__).parents[2]
PAGES = [
    "howto/agents.md",
    "howto/system-prompt.md",
    "howto/move-from-e2b.md",
    "howto/move-from-local-shell.md",
    "howto/upgrade-0.2.md",
]
MODEL = '"anthropic:claude-sonnet-5"'
BLOCK = re.compile(r"^```(python|text)\n(.*?)^```", re.MULTILINE | re.DOTALL)
# Calls a tool that every kind of agent has, and says what it read.
SCRIPT = """\
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult

class Scripted(BaseChatModel):
    names: list[str] = []

    @property
    def _llm_type(self):
        return "scripted"

    def bind_tools(self, tools, **_):
        return Scripted(names=[getattr(tool, "name", "") for tool in tools])

    def _generate(self, messages, *_, **__):
        if isinstance(messages[-1], ToolMessage):
            answer = AIMessage(f"It printed {messages[-1].text.strip()}.")
        else:
            shell = "bash" if "bash" in self.names else "execute"
            command = {"command": "for i in 1 2 3; do echo n$i; sleep 0.1; done"}
            answer = AIMessage("", tool_calls=[{"name": shell, "args": command, "id": "call-1"}])
        return ChatResult(generations=[ChatGeneration(message=answer)])

"""

pytestmark = pytest.mark.docker


@dataclass
class Program:
    page: str
    number: int
    text: str
    prints: str | None = None

    def __str__(self) -> str:
        return f"{Path(self.page).stem}-{self.number}"


def programs() -> list[Program]:
    return [program for page in PAGES for program in programs_of(page)]


def programs_of(page: str) -> list[Program]:
    found: list[Program] = []
    for language, text in BLOCK.findall((ROOT / "docs" / page).read_text()):
        if language == "python":
            found.append(Program(page, len(found) + 1, text))
        else:
            found[-1].prints = text
    return found


@pytest.mark.parametrize("program", programs(), ids=str)
def test_block_runs(program: Program, agent_server: ServerProcess, tmp_path: Path) -> None:
    text = program.text
    scripted = MODEL in text
    if scripted:
        text = SCRIPT + text.replace(MODEL, "Scripted()")
    ran = subprocess.run(
        [sys.executable, "-c", text],
        env={**os.environ, "SANDLOT_URL": agent_server.url},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    if program.prints is not None:
        assert ran.stdout == program.prints
    elif scripted and "agent.invoke" in text:
        assert "n1\nn2\nn3" in ran.stdout
    elif "stream_mode" in text:
        assert ran.stdout == "n1\nn2\nn3\n"


def test_the_pages_have_programs() -> None:
    assert {program.page for program in programs()} == set(PAGES)
