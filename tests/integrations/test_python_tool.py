"""The tool ``python`` of each framework with a real kernel: variables stay, and the model sees the plot."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from deepagents import create_deep_agent
from langchain.agents import create_agent
from langchain_anthropic.chat_models import _format_messages
from langchain_core.messages import BaseMessage, ToolMessage
from langchain_core.outputs import ChatResult
from mcp.types import ImageContent
from pydantic import Field
from pydantic_ai import Agent, BinaryContent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, UserPromptPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from sandlot import Client
from sandlot.integrations.deepagents import SandlotBackend
from sandlot.integrations.langchain import sandbox_tools
from sandlot.integrations.pydantic_python import python_toolset
from tests.code.conftest import declare, environment
from tests.code.plots import assert_shows_the_plot, plots_image
from tests.faults.rig import ServerProcess
from tests.integrations.mcp_clients.official import over_http
from tests.integrations.scripted import ByConversation, by_conversation, calls, results, run_of, said

pytestmark = [pytest.mark.docker, pytest.mark.timeout(400)]

SET = "squares = [1, 4, 9]\nopen('kept.txt', 'w').write('by python')\nprint('set')"
PLOT = "import matplotlib.pyplot as plt\nplt.plot(squares)\nplt.title('Squares')\nplt.show()"
SCRIPT = (("python", {"code": SET}), ("python", {"code": PLOT}))


@pytest.fixture(scope="module")
def kernel_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    base = environment("base", image=plots_image(), contexts=["python"])
    server = ServerProcess(registry=declare(tmp_path_factory.mktemp("registry"), base))
    try:
        asyncio.run(server.start())
        yield server
    finally:
        asyncio.run(server.clean())


@pytest.fixture
def client(kernel_server: ServerProcess) -> Iterator[Client]:
    """In place of the one of ``conftest``."""
    with Client(kernel_server.url) as client:
        yield client


class Watched(ByConversation):
    """Keeps what it read last."""

    read: list[BaseMessage] = Field(default_factory=list)

    def _generate(self, messages: list[BaseMessage], *rest: Any, **options: Any) -> ChatResult:
        self.read[:] = messages
        return super()._generate(messages, *rest, **options)


def watched(*turns: tuple[str, dict[str, Any]]) -> Watched:
    return Watched(responses=by_conversation(*(calls(turn) for turn in turns)).responses)


def assert_seen(messages: Sequence[BaseMessage]) -> None:
    """The picture is in what the model reads, and in what is sent to one of Anthropic's."""
    first, plotted, *_ = [each for each in messages if isinstance(each, ToolMessage)]
    assert first.text == "set"
    text, picture = plotted.content
    assert isinstance(text, dict)
    assert text["text"].endswith("[picture 1: image/png]"), text
    assert isinstance(picture, dict)
    assert (picture["type"], picture["mime_type"]) == ("image", "image/png")
    assert_shows_the_plot(base64.b64decode(picture["base64"]))
    _, sent = _format_messages(list(messages), model="claude-sonnet-5")
    answers = [block for message in sent for block in message["content"] if isinstance(block, dict)]
    shown = [part for block in answers if block["type"] == "tool_result" for part in block["content"]]
    (source,) = [part["source"] for part in shown if isinstance(part, dict) and part["type"] == "image"]
    assert source == {"type": "base64", "media_type": "image/png", "data": picture["base64"]}


def test_langchain(client: Client, thread: str) -> None:
    model = watched(*SCRIPT)
    create_agent(model, sandbox_tools(client, python=True)).invoke(said("go"), run_of(thread))
    assert_seen(model.read)


def test_deepagents(client: Client, thread: str) -> None:
    """And its own tools work in the same sandbox."""
    model = watched(*SCRIPT, ("execute", {"command": "cat kept.txt"}))
    python = [tool for tool in sandbox_tools(client, python=True) if tool.name == "python"]
    agent = create_deep_agent(model, tools=python, backend=SandlotBackend(client))
    state = agent.invoke(said("go"), run_of(thread))
    assert_seen(model.read)
    assert "by python" in results(state)[-1].text
    assert len(list(client.sessions(thread=thread))) == 1


async def test_mcp(kernel_server: ServerProcess, thread: str) -> None:
    async with over_http(kernel_server.url, thread) as mcp:
        await mcp.call_tool("python", {"code": SET})
        result = await mcp.call_tool("python", {"code": PLOT})
    (picture,) = [each for each in result.content if isinstance(each, ImageContent)]
    assert picture.mime_type == "image/png"
    assert_shows_the_plot(base64.b64decode(picture.data))


async def test_pydantic_ai(client: Client, thread: str) -> None:
    seen: list[ModelMessage] = []

    def answer(messages: list[ModelMessage], _: AgentInfo) -> ModelResponse:
        seen[:] = messages
        turn = sum(isinstance(message, ModelResponse) for message in messages)
        return ModelResponse([ToolCallPart(*SCRIPT[turn]) if turn < len(SCRIPT) else TextPart("done")])

    toolset = python_toolset(client, thread=thread, environment=None)
    await Agent(FunctionModel(answer), toolsets=[toolset]).run("go")
    shown = [part.content for part in seen[-1].parts if isinstance(part, UserPromptPart)]
    (picture,) = [each for content in shown for each in content if isinstance(each, BinaryContent)]
    assert picture.media_type == "image/png"
    assert_shows_the_plot(picture.data)
