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
    "howto/mcp.md",
    "howto/e2b-sdk.md",
    "howto/system-prompt.md",
    "howto/move-from-e2b.md",
    "howto/move-from-local-shell.md",
    "howto/upgrade-to-0.2.md",
]
MODEL = '"anthropic:claude-sonnet-5"'
OPENAI_MODEL = '"gpt-5.5"'
SERVER = "http://127.0.0.1:8000"
BLOCK = re.compile(r"(<!-- not run: [^\n]* -->\n+)?^```(python|text)\n(.*?)^```", re.MULTILINE | re.DOTALL)
E2B = ROOT / ".venv-e2b/bin/python"  # their SDK, which the server's packages cannot be installed with
COMMAND = "for i in 1 2 3; do echo n$i; sleep 0.1; done"
# Each calls a tool that every agent of its framework has, and says what it read.
LANGCHAIN = """\
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
            command = {"command": COMMAND}
            answer = AIMessage("", tool_calls=[{"name": shell, "args": command, "id": "call-1"}])
        return ChatResult(generations=[ChatGeneration(message=answer)])

"""
PYDANTIC_AI = """\
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import FunctionModel

def Scripted():
    def answer(messages, info):
        read = [part for part in messages[-1].parts if isinstance(part, ToolReturnPart)]
        call = ToolCallPart(info.function_tools[0].name, {"command": COMMAND})
        return ModelResponse([TextPart(str(read[-1].content)) if read else call])

    return FunctionModel(answer)

"""
OPENAI_AGENTS = """\
import json
from agents import ModelResponse, Usage, set_tracing_disabled
from agents.models.interface import Model
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

set_tracing_disabled(True)

class Scripted(Model):
    async def get_response(self, system_instructions, input, *_, **__):
        last = input[-1] if isinstance(input, list) else {}
        if "output" in last:
            text = ResponseOutputText(text=str(last["output"]), type="output_text", annotations=[])
            item = ResponseOutputMessage(
                id="m", content=[text], role="assistant", status="completed", type="message"
            )
        else:
            item = ResponseFunctionToolCall(
                arguments=json.dumps({"cmd": COMMAND}), call_id="c", name="exec_command", type="function_call"
            )
        return ModelResponse([item], Usage(), None)

    def stream_response(self, *_, **__):
        raise NotImplementedError

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
    for reason, language, text in BLOCK.findall((ROOT / "docs" / page).read_text()):
        if reason:
            continue
        if language == "python":
            found.append(Program(page, len(found) + 1, text))
        else:
            found[-1].prints = text
    return found


@pytest.mark.parametrize("program", programs(), ids=str)
def test_block_runs(program: Program, agent_server: ServerProcess, tmp_path: Path) -> None:
    text = program.text.replace(SERVER, agent_server.url)
    model = next((named for named in (MODEL, OPENAI_MODEL) if named in text), None)
    if model is not None:
        text = f"COMMAND = {COMMAND!r}\n{script_for(text)}{text.replace(model, 'Scripted()')}"
    python = E2B if "from e2b import" in text else sys.executable
    ran = subprocess.run(
        [python, "-c", text],
        env={
            **os.environ,
            "SANDLOT_URL": agent_server.url,
            "E2B_API_URL": agent_server.url,
            "E2B_SANDBOX_URL": agent_server.url,
            "E2B_API_KEY": "e2b_" + "0" * 40,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        },
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    if program.prints is not None:
        assert ran.stdout == program.prints
    elif model is not None and re.search(r"agent\.(invoke|run_sync)|Runner\.run", text):
        assert "n1\nn2\nn3" in ran.stdout
    elif "stream_mode" in text:
        assert ran.stdout == "n1\nn2\nn3\n"


def script_for(program: str) -> str:
    if "from pydantic_ai import" in program:
        return PYDANTIC_AI
    return OPENAI_AGENTS if "from agents import" in program else LANGCHAIN


def test_the_pages_have_programs() -> None:
    assert {program.page for program in programs()} == set(PAGES)
