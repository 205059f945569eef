"""The tools in agents: one sandbox per conversation, once per call, from any loop, without blocking one."""

from __future__ import annotations

import asyncio
import base64
from typing import Annotated, Any, TypedDict

import pytest
from langchain.agents import create_agent
from langchain_core.messages import AnyMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.prebuilt import ToolNode

from sandlot import AsyncClient, Client
from sandlot.domain.errors import InvalidRequest
from sandlot.integrations.langchain import SandboxMiddleware, sandbox_tools
from tests.faults.rig import ServerProcess
from tests.integrations.langchain_runs import ask, bash, config
from tests.integrations.scripted import by_conversation, calls, results

pytestmark = pytest.mark.docker


# --- what a model sees --------------------------------------------------------------------------


def test_the_model_sees_arguments_and_nothing_of_ours(client: Client) -> None:
    tools = {tool.name: tool for tool in sandbox_tools(client)}
    assert tools["bash"].args.keys() == {"command", "timeout_s", "background", "restart"}
    for tool in tools.values():
        assert "runtime" not in tool.args
        assert "config" not in tool.args
        assert all(described.get("description") for described in tool.args.values())


def test_files_and_commands_share_a_sandbox(client: Client, thread: str) -> None:
    model = by_conversation(
        calls(("write_file", {"path": "app/main.py", "content": "print('one')\n"})),
        calls(("edit_file", {"path": "app/main.py", "old": "one", "new": "two"})),
        bash("cd app && python3 main.py; exit_code=7"),
        bash("pwd; (exit $exit_code)"),
        calls(("read_file", {"path": "app/main.py"}), ("search", {"pattern": "two"}), ("list_files", {})),
        calls(("upload_file", {"path": "b.bin", "content_base64": base64.b64encode(b"\0\1").decode()})),
        calls(("download_file", {"path": "b.bin"})),
    )
    said = results(create_agent(model, sandbox_tools(client)).invoke(ask(), config(thread)))
    assert len({message.artifact["session_id"] for message in said}) == 1
    text = [message.text for message in said]
    assert text[2] == "two"
    assert text[3] == "/workspace/app\n[exit code 7]"
    assert said[3].status == "success"  # a program that says no is no accident
    assert said[3].artifact["exit_code"] == 7
    assert "print('two')" in text[4]
    assert text[5].startswith("/workspace/app/main.py:1:")
    assert "/workspace/app/" in text[6]
    assert base64.b64decode(said[8].artifact["base64"]) == b"\0\1"
    assert "AAE" not in text[8]


def test_what_failed_is_an_error_with_its_artifact(client: Client, thread: str) -> None:
    model = by_conversation(
        calls(("read_file", {"path": "missing.txt"})),
        bash("echo before; sleep 60", timeout_s=3),
        calls(("stop", {"job": "job-1"})),
        calls(("bash", {})),
        calls(("bash", {"command": "true", "timeout_s": 1e9})),
    )
    state = create_agent(model, sandbox_tools(client)).invoke(ask(), config(thread))
    missing, slow, no_job, empty, too_long = results(state)
    assert {message.status for message in results(state)} == {"error"}
    assert "not_found" in missing.text
    assert missing.artifact["error"] == "file_problem"
    assert "before" in slow.text
    assert "timed out after" in slow.text
    assert slow.artifact["timed_out"]
    assert "Known jobs: none" in no_job.text
    assert "Missing command" in empty.text
    assert "timeout_s" in too_long.text
    assert state["messages"][-1].text == "all done"  # none of them has ended the run


# --- whose sandbox ------------------------------------------------------------------------------


def test_without_a_thread_there_is_no_sandbox(client: Client) -> None:
    agent = create_agent(by_conversation(bash("true")), sandbox_tools(client))
    with pytest.raises(InvalidRequest, match="thread_id"):
        agent.invoke(ask())


async def test_without_a_thread_there_is_no_sandbox_async(client: Client) -> None:
    agent = create_agent(by_conversation(bash("true")), sandbox_tools(client))
    with pytest.raises(InvalidRequest, match="thread_id"):
        await agent.ainvoke(ask())


def test_a_wrong_address_is_told_to_the_model_and_a_wrong_environment_to_the_developer(
    client: Client, thread: str
) -> None:
    with Client("http://127.0.0.1:9") as nowhere:
        agent = create_agent(by_conversation(bash("true")), middleware=[SandboxMiddleware(nowhere)])
        (refused,) = results(agent.invoke(ask(), config(thread)))
    assert refused.status == "error"
    assert "unavailable" in refused.text
    agent = create_agent(by_conversation(bash("true")), sandbox_tools(client, environment="no-such"))
    with pytest.raises(InvalidRequest, match="no-such"):
        agent.invoke(ask(), config(thread))


async def test_twenty_conversations_at_once_have_twenty_sandboxes(client: Client, thread: str) -> None:
    threads = [f"{thread}/{number}" for number in range(20)]
    model = by_conversation(bash("cat mine 2>/dev/null; echo $NAME"), bash("cat mine; echo $NAME"))
    tools = sandbox_tools(client)
    by_name = {tool.name: tool for tool in tools}

    async def one(name: str) -> list[str]:
        note = {"name": "bash", "args": {"command": f"NAME={name}; echo {name} > mine"}, "id": "1"}
        await by_name["bash"].ainvoke({**note, "type": "tool_call"}, config(name))
        said = results(await create_agent(model, tools).ainvoke(ask(), config(name)))
        assert [message.text for message in said] == [f"{name}\n{name}"] * 2
        return [message.artifact["session_id"] for message in said]

    sessions = await asyncio.gather(*(one(name) for name in threads))
    assert len({session for pair in sessions for session in pair}) == 20


def test_parallel_calls_share_one_sandbox(client: Client, thread: str) -> None:
    model = by_conversation(
        calls(
            *(("bash", {"command": f"echo {number} >> numbers"}) for number in range(4)),
            *(("write_file", {"path": f"{number}.txt", "content": "x"}) for number in range(4)),
        ),
        bash("sort -n numbers | tr '\\n' ' '; ls *.txt | wc -l"),
    )
    said = results(create_agent(model, sandbox_tools(client)).invoke(ask(), config(thread)))
    assert len({message.artifact["session_id"] for message in said}) == 1
    assert said[-1].text == "0 1 2 3 4"
    assert len([session for session in client.sessions() if session.thread == thread]) == 1


async def test_an_async_client_serves_an_async_agent_alone(agent_server: ServerProcess, thread: str) -> None:
    async with AsyncClient(agent_server.url) as client:
        tools = sandbox_tools(client)
        agent = create_agent(by_conversation(bash("X=1"), bash("echo $X")), tools)
        assert results(await agent.ainvoke(ask(), config(thread)))[-1].text == "1"
        with pytest.raises(InvalidRequest, match="ainvoke"):
            await asyncio.to_thread(agent.invoke, ask(), config(thread))
        await (await client.thread(thread)).delete()


def test_one_set_of_tools_from_plain_code_and_from_two_loops(client: Client, thread: str) -> None:
    saver = InMemorySaver()
    model = by_conversation(
        bash("X=plain; echo $X"), "so", bash("X=$X-one; echo $X"), "so", bash("echo $X-two"), "so"
    )
    agent = create_agent(model, sandbox_tools(client), checkpointer=saver)
    agent.invoke(ask(), config(thread))
    asyncio.run(agent.ainvoke(ask(), config(thread)))
    state = asyncio.run(agent.ainvoke(ask(), config(thread)))
    assert [message.text for message in results(state)] == ["plain", "plain-one", "plain-one-two"]
    assert len({message.artifact["session_id"] for message in results(state)}) == 1


# --- once ---------------------------------------------------------------------------------------


class State(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]


class Crash(Exception):
    pass


def crashing_once(tools: list[Any], saver: InMemorySaver) -> Any:
    """A graph whose tool node dies the first time, after its tools have run and before that is written down."""
    node = ToolNode(tools)
    crashed = False

    def run(state: State, config: RunnableConfig) -> Any:
        nonlocal crashed
        done = node.invoke(state, config)
        if not crashed:
            crashed = True
            raise Crash
        return done

    graph = StateGraph(State)
    graph.add_node("work", run)
    graph.add_edge(START, "work")
    graph.add_edge("work", END)
    return graph.compile(checkpointer=saver)


@pytest.mark.parametrize("background", [False, True], ids=["foreground", "background"])
def test_a_node_that_is_executed_again_runs_its_command_once(
    client: Client, thread: str, background: bool
) -> None:
    graph = crashing_once(sandbox_tools(client), InMemorySaver())
    message = bash("echo run >> log; echo $RANDOM-$RANDOM", background=background)
    with pytest.raises(Crash):
        graph.invoke({"messages": [message]}, config(thread))
    client.thread(thread).shell().run("export CHANGED=since-then")
    (said,) = results(graph.invoke(None, config(thread)))
    assert said.status == "success", said.text
    session = client.thread(thread)
    if background:
        job = said.artifact["job"]
        assert job in said.text
        session.exec(job).wait(10)
    assert session.files.read_text("log") == "run\n"


def test_a_node_that_is_executed_again_restarts_its_shell_once(client: Client, thread: str) -> None:
    graph = crashing_once(sandbox_tools(client), InMemorySaver())
    with pytest.raises(Crash):
        graph.invoke({"messages": [bash("echo $KEPT", restart=True)]}, config(thread))
    client.thread(thread).shell().run("export KEPT=since-then")
    (said,) = results(graph.invoke(None, config(thread)))
    assert said.status == "success", said.text
    assert client.thread(thread).shell().run("echo $KEPT").stdout == "since-then\n"


def test_the_same_call_id_in_a_later_turn_runs_again(client: Client, thread: str) -> None:
    """Models that number their calls from the start in each message are not rare."""
    again = bash("echo run >> log; wc -l < log")
    agent = create_agent(
        by_conversation(again, again, "so", again), sandbox_tools(client), checkpointer=InMemorySaver()
    )
    agent.invoke(ask(), config(thread))
    state = agent.invoke(ask(), config(thread))
    assert len({message.tool_call_id for message in results(state)}) == 1
    assert [message.text for message in results(state)] == ["1", "2", "3"]


def test_time_travel_runs_again_in_the_sandbox_as_it_is(client: Client, thread: str) -> None:
    """The graph goes back, the files do not; so what is done anew is done, and not taken from the record."""
    agent = create_agent(
        by_conversation(bash("echo run >> log; wc -l < log")),
        sandbox_tools(client),
        checkpointer=InMemorySaver(),
    )
    agent.invoke(ask(), config(thread))
    (before,) = [state for state in agent.get_state_history(config(thread)) if state.next == ("tools",)]
    assert [message.text for message in results(agent.invoke(None, before.config))] == ["2"]


async def test_a_cancelled_run_takes_its_command_along(client: Client, thread: str) -> None:
    agent = create_agent(by_conversation(bash("echo > begun; sleep 4715")), sandbox_tools(client))
    session = await asyncio.to_thread(client.thread, thread)
    running = asyncio.create_task(agent.ainvoke(ask(), config(thread)))

    async def until(command: str) -> None:
        async with asyncio.timeout(30):
            while (await asyncio.to_thread(session.run, command)).exit_code != 0:
                await asyncio.sleep(0.05)

    await until("[ -e begun ] && pgrep -f '[s]leep 4715'")
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await until("! pgrep -f '[s]leep 4715'")


def test_that_a_sandbox_has_ended_is_told_once(client: Client, thread: str) -> None:
    agent = create_agent(
        by_conversation(bash("touch mine"), "so", bash("ls"), bash("ls")),
        sandbox_tools(client),
        checkpointer=InMemorySaver(),
    )
    agent.invoke(ask(), config(thread))
    client.thread(thread).delete()
    _, first, second = results(agent.invoke(ask(), config(thread)))
    assert "this is a new, empty sandbox" in first.text
    assert second.text == "(no output)"
