"""Output while a command runs, and event loops that nothing blocks."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from blockbuster import BlockingError, blockbuster_ctx
from langchain.agents import create_agent
from langgraph.checkpoint.memory import InMemorySaver

from sandlot import AsyncClient, Client
from sandlot.integrations.langchain import SandboxMiddleware, sandbox_tools
from tests.faults.rig import ServerProcess
from tests.integrations.langchain_runs import ask, bash, config
from tests.integrations.scripted import by_conversation, calls, results

pytestmark = pytest.mark.docker

# --- live ---------------------------------------------------------------------------------------

# It goes on only when the test has seen its first words. With "tools" alone LangGraph holds all events back until
# the step is over, unless the graph is told to be eager; a mode beside it that is live makes this one live too.
MODES = ["tools", "custom"]
WAITS = "echo begun; until [ -e seen ]; do sleep 0.05; done; echo ended"


def check_stream(events: list[dict[str, Any]]) -> None:
    kinds = [event["event"] for event in events]
    assert kinds[0] == "tool-started"
    assert kinds[-1] == "tool-finished"
    assert set(kinds[1:-1]) == {"tool-output-delta"}
    assert "".join(event["delta"] for event in events[1:-1]) == "begun\nended\n"
    assert events[-1]["output"].text == "begun\nended"


def test_output_is_shown_under_tools_alone_by_an_eager_graph(client: Client, thread: str) -> None:
    agent = create_agent(by_conversation(bash(WAITS, timeout_s=90)), sandbox_tools(client))
    agent.stream_eager = True
    events = []
    for event in agent.stream(ask(), config(thread), stream_mode="tools"):
        events.append(event)
        if event["event"] == "tool-output-delta" and "begun" in event["delta"]:
            client.thread(thread).files.write("seen", "")
    check_stream(events)


def test_output_is_shown_while_the_command_runs(client: Client, thread: str) -> None:
    agent = create_agent(by_conversation(bash(WAITS, timeout_s=90)), sandbox_tools(client))
    events = []
    for _, event in agent.stream(ask(), config(thread), stream_mode=MODES):
        events.append(event)
        if event["event"] == "tool-output-delta" and "begun" in event["delta"]:
            client.thread(thread).files.write("seen", "")
    check_stream(events)


@pytest.mark.parametrize("kind", [Client, AsyncClient])
async def test_output_is_shown_while_the_command_runs_async(
    agent_server: ServerProcess, client: Client, thread: str, kind: type[Client | AsyncClient]
) -> None:
    mine = kind(agent_server.url)
    agent = create_agent(by_conversation(bash(WAITS, timeout_s=90)), sandbox_tools(mine))
    events = []
    async for _, event in agent.astream(ask(), config(thread), stream_mode=MODES):
        events.append(event)
        if event["event"] == "tool-output-delta" and "begun" in event["delta"]:
            await asyncio.to_thread(lambda: client.thread(thread).files.write("seen", ""))
    check_stream(events)
    if isinstance(mine, AsyncClient):
        await mine.aclose()
    else:
        await asyncio.to_thread(mine.close)


# --- blocking -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Client, AsyncClient])
async def test_nothing_blocks_the_loop_not_even_the_first_call(
    agent_server: ServerProcess, client: Client, thread: str, kind: type[Client | AsyncClient]
) -> None:
    model = by_conversation(
        bash("echo hello"),
        bash("seq 100000"),
        bash("sleep 60", background=True),
        calls(("write_file", {"path": "a", "content": "x"}), ("read_file", {"path": "a"})),
    )
    with blockbuster_ctx():
        with pytest.raises(BlockingError):
            time.sleep(0.001)  # the watch is awake
        mine = kind(agent_server.url)
        agent = create_agent(model, middleware=[SandboxMiddleware(mine)], checkpointer=InMemorySaver())
        state = await agent.ainvoke(ask(), config(thread))
    assert results(state)[0].text == "hello"
    assert state["messages"][-1].text == "all done"
    if isinstance(mine, AsyncClient):
        await mine.aclose()
    else:
        await asyncio.to_thread(mine.close)
