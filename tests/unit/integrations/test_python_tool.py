"""Python with pictures as a tool: in LangChain, Deep Agents, MCP, Pydantic AI and OpenAI Agents, on the fake."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from agents.tool_context import ToolContext
from agents.usage import Usage
from deepagents import create_deep_agent
from langchain.agents import create_agent
from langchain_anthropic.chat_models import _format_messages
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from mcp import Client as McpClient
from mcp.types import ImageContent, TextContent
from pydantic_ai import Agent, BinaryContent
from pydantic_ai.messages import (
    ModelMessage,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models.function import AgentInfo, FunctionModel
from tests.integrations.scripted import by_conversation, calls

from sandlot import AsyncClient
from sandlot.domain.code.contexts import Language
from sandlot.domain.code.result import Value
from sandlot.domain.environment import Environment, Recipe
from sandlot.domain.service import Catalogue, EnvironmentInfo
from sandlot.integrations import toolbox
from sandlot.integrations.langchain import sandbox_tools
from sandlot.integrations.mcp.server import build_mcp
from sandlot.integrations.mcp.thread_binding import ProcessBinding
from sandlot.integrations.openai_agents import python_tool
from sandlot.integrations.pydantic_python import python_toolset
from sandlot.integrations.toolbox.pictures import MAX_PICTURE_BYTES, MAX_PICTURES, viewable
from sandlot.testing import FakeSandlot

PNG = b"\x89PNG\r\n\x1a\n" + bytes(100)
PNG_TEXT = base64.b64encode(PNG).decode()


@pytest.fixture
def fake() -> FakeSandlot:
    fake = FakeSandlot()
    fake.on_cell("plot()", displays=[{"image/png": PNG, "text/plain": "<Figure>"}], value="the value")
    return fake


def values(*pictures: bytes, kind: str = "image/png") -> list[Value]:
    return [Value({kind: base64.b64encode(each).decode()}) for each in pictures]


# --- the operation ------------------------------------------------------------------------------


async def test_a_model_reads_text_values_errors_and_pictures(fake: FakeSandlot) -> None:
    async with fake.client() as client:
        session = await client.create()
        plotted = await toolbox.python(session, "plot()")
        assert plotted.text == "<Figure>\nthe value\n[picture 1: image/png]"
        assert [(each.media_type, each.content) for each in plotted.pictures] == [("image/png", PNG)]
        assert not plotted.failed
        kept = await toolbox.python(session, "x = 20\nprint('set')")
        assert kept.text == "set"
        assert (await toolbox.python(session, "x + 1")).text == "21"
        assert (await toolbox.python(session, "y = 1")).text == "(no output)"
        failed = await toolbox.python(session, "1 / 0")
        assert failed.failed
        assert failed.text == "ZeroDivisionError: division by zero"
        assert failed.data["exception"]["name"] == "ZeroDivisionError"
        slow = await toolbox.python(session, "import time\nprint('on')\ntime.sleep(60)", timeout_s=0.2)
        assert slow.text.startswith("on\n")
        assert "timed out after" in slow.text
        assert (await toolbox.python(session, "x")).text == "20"
        long = await toolbox.python(session, "print('a' * 100000)", limit=1000)
        assert len(long.text) < 1200
        assert "characters left out" in long.text


async def test_a_repeated_call_runs_nothing_and_restarts_nothing(fake: FakeSandlot) -> None:
    async with fake.client() as client:
        session = await client.create()
        await toolbox.python(session, "n = 5")
        assert (await toolbox.python(session, "n = 1\nn", call_id="one", restart=True)).text == "1"
        await toolbox.python(session, "n += 1")
        assert (await toolbox.python(session, "n = 1\nn", call_id="one", restart=True)).text == "1"
        assert (await toolbox.python(session, "n")).text == "2"
        assert "without its variables" in (await toolbox.python(session, "", restart=True)).text
        assert "NameError" in (await toolbox.python(session, "n")).text


async def test_output_comes_while_code_runs(fake: FakeSandlot) -> None:
    async with fake.client() as client:
        said: list[str] = []
        await toolbox.python(await client.create(), "print('one')\nprint('two')", on_output=said.append)
        assert said == ["one\n", "two\n"]


def test_pictures_are_few_small_and_real() -> None:
    chosen, left_out = viewable(values(*[PNG] * (MAX_PICTURES + 2)))
    assert (len(chosen), left_out) == (MAX_PICTURES, 2)
    assert viewable(values(PNG + bytes(MAX_PICTURE_BYTES))) == ((), 1)
    assert viewable(values(b"<script>")) == ((), 1)
    assert viewable(values(PNG, kind="image/jpeg")) == ((), 1)
    assert viewable([Value({"text/plain": "x"}), Value({"image/png": "no base64!"})]) == ((), 0)
    big = PNG + bytes(3_000_000)
    chosen, left_out = viewable(values(big, big, big, big, PNG))
    assert (len(chosen), left_out) == (4, 1)


# --- LangChain ----------------------------------------------------------------------------------


async def test_langchain_models_see_the_picture(fake: FakeSandlot) -> None:
    """As the block that LangChain's own adapters translate for each model, such as Anthropic's."""
    async with fake.client() as client:
        model = by_conversation(calls(("python", {"code": "plot()"})), calls(("python", {"code": "1 / 0"})))
        agent = create_agent(model, sandbox_tools(client, python=True))
        config: Any = {"configurable": {"thread_id": "talk"}}
        state = await agent.ainvoke({"messages": [("user", "go")]}, config)
    plotted, failed = [each for each in state["messages"] if isinstance(each, ToolMessage)]
    text, picture = plotted.content
    assert text == {"type": "text", "text": "<Figure>\nthe value\n[picture 1: image/png]"}
    assert isinstance(picture, dict)
    assert (picture["type"], picture["base64"], picture["mime_type"]) == ("image", PNG_TEXT, "image/png")
    assert plotted.artifact["verdict"] == "ok"
    assert plotted.status == "success"
    assert isinstance(failed.content, str)
    _, sent = _format_messages(
        [HumanMessage("go"), AIMessage("", tool_calls=state["messages"][1].tool_calls), plotted],
        model="claude-sonnet-5",
    )
    source = sent[-1]["content"][0]["content"][1]["source"]
    assert source == {"type": "base64", "media_type": "image/png", "data": PNG_TEXT}


@pytest.mark.parametrize("size", [100, 150_000], ids=["small", "large"])
async def test_deep_agents_see_the_picture(size: int) -> None:
    """Whatever its size: Deep Agents moves long texts of tools to a file, and a picture must not go there."""
    picture = PNG + bytes(size)
    fake = FakeSandlot()
    fake.on_cell("plot()", displays=[{"image/png": picture}])
    async with fake.client() as client:
        model = by_conversation(
            calls(("python", {"code": "x = 20"})),
            calls(("python", {"code": "x + 1"})),
            calls(("python", {"code": "plot()"})),
        )
        python = [tool for tool in sandbox_tools(client, python=True) if tool.name == "python"]
        config: Any = {"configurable": {"thread_id": "talk"}}
        state = await create_deep_agent(model, tools=python).ainvoke({"messages": [("user", "go")]}, config)
    first, kept, plotted = [each for each in state["messages"] if isinstance(each, ToolMessage)]
    assert (first.text, kept.text) == ("(no output)", "21")
    text, shown = plotted.content
    assert text == {"type": "text", "text": "[picture 1: image/png]"}
    assert isinstance(shown, dict)
    assert (shown["type"], base64.b64decode(shown["base64"])) == ("image", picture)


def test_langchain_has_the_tool_only_on_request(fake: FakeSandlot) -> None:
    client = fake.client()
    assert "python" not in [tool.name for tool in sandbox_tools(client)]
    (tool,) = [tool for tool in sandbox_tools(client, python=True) if tool.name == "python"]
    assert tool.args.keys() == {"code", "timeout_s", "restart"}


# --- MCP ----------------------------------------------------------------------------------------


def catalogue(*contexts: Language) -> Catalogue:
    return Catalogue((EnvironmentInfo.of(Recipe(Environment("base", "image"), contexts=contexts)),))


async def test_mcp_clients_get_image_content(fake: FakeSandlot) -> None:
    async with fake.client() as client:
        server = build_mcp(ProcessBinding(client), catalogue(Language.PYTHON))
        async with McpClient(server) as mcp:
            result = await mcp.call_tool("python", {"code": "plot()"})
            failed = await mcp.call_tool("python", {"code": "1 / 0"})
            wrong = await mcp.call_tool("python", {"code": "1", "timeout_s": 1e9})
    text, *rest = result.content
    assert isinstance(text, TextContent)
    (picture,) = [each for each in rest if isinstance(each, ImageContent)]
    assert (picture.data, picture.mime_type) == (PNG_TEXT, "image/png")
    assert result.structured_content is not None
    assert result.structured_content["text"] == "the value"
    assert not failed.is_error, "code that failed is a result"
    assert failed.structured_content is not None
    assert failed.structured_content["exception"]["name"] == "ZeroDivisionError"
    assert wrong.is_error


async def test_mcp_has_the_tool_only_where_it_works(fake: FakeSandlot) -> None:
    async with fake.client() as client, McpClient(build_mcp(ProcessBinding(client), catalogue())) as mcp:
        assert "python" not in [tool.name for tool in (await mcp.list_tools()).tools]


# --- Pydantic AI and OpenAI Agents --------------------------------------------------------------


async def test_pydantic_models_see_the_picture(fake: FakeSandlot) -> None:
    seen: list[ModelMessage] = []

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        seen[:] = messages
        (tool,) = info.function_tools
        assert set(tool.parameters_json_schema["properties"]) == {"code", "timeout_s"}
        if len(messages) == 1:
            return ModelResponse([ToolCallPart("python", {"code": "plot()"})])
        return ModelResponse([TextPart("done")])

    async with fake.client() as client:
        toolset = python_toolset(client, thread="talk", environment=None)
        await Agent(FunctionModel(answer), toolsets=[toolset]).run("go")
    returned = [part for part in seen[-1].parts if isinstance(part, ToolReturnPart)]
    assert "[picture 1: image/png]" in str(returned[0].content)
    shown = [part.content for part in seen[-1].parts if isinstance(part, UserPromptPart)]
    pictures = [each for content in shown for each in content if isinstance(each, BinaryContent)]
    assert [(each.data, each.media_type) for each in pictures] == [(PNG, "image/png")]


async def test_openai_agents_get_an_image_output(fake: FakeSandlot) -> None:
    async with fake.client() as client:
        tool = python_tool(client, thread="talk", environment=None)
        assert set(tool.params_json_schema["properties"]) == {"code", "timeout_s"}
        context = ToolContext(None, Usage(), "python", "call-1", '{"code": "plot()", "timeout_s": 60}')
        text, picture = await tool.on_invoke_tool(context, '{"code": "plot()", "timeout_s": 60}')
    assert text.text.endswith("[picture 1: image/png]")
    assert picture.image_url == f"data:image/png;base64,{PNG_TEXT}"


async def test_tools_refuse_options_that_are_none() -> None:
    for make in (python_tool, python_toolset):
        with pytest.raises(TypeError, match="lifetime_s"):
            make(AsyncClient("http://127.0.0.1:1"), thread="talk", lifetime=1)  # type: ignore[call-arg]
