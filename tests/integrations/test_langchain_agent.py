"""Agents over several runs: in two processes, through losses, with subagents, and in graphs built by hand."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypedDict

import pytest
from langchain.agents import create_agent
from langchain.tools import tool
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage
from langchain_core.outputs import ChatResult
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import RetryPolicy

from sandlot import Client
from sandlot.domain.errors import InvalidRequest
from sandlot.domain.session import SessionState
from sandlot.integrations.langchain import SandboxMiddleware, bash_node, sandbox_tools
from sandlot.integrations.sandboxes import Sandboxes
from tests.faults.rig import ServerProcess
from tests.integrations.langchain_runs import another_process, ask, bash, config, in_another_process
from tests.integrations.scripted import ByConversation, by_conversation, calls, results

pytestmark = pytest.mark.docker


def sessions_of(client: Client, thread: str) -> list[Any]:
    return [session for session in client.sessions() if (session.thread or "").partition("/")[0] == thread]


# --- three runs in two processes ----------------------------------------------------------------


def repair(url: str, thread: str, database: str) -> dict[str, Any]:
    """One run of an agent that writes a program, sees it fail, and mends it."""
    model = by_conversation(
        calls(("write_file", {"path": "app/main.py", "content": "print(1 / 0)\n"})),
        bash("cd app; STAGE=written; python3 main.py"),
        "It fails.",
        calls(("edit_file", {"path": "main.py", "old": "1 / 0", "new": "40 + 2"})),  # not there
        calls(("edit_file", {"path": "app/main.py", "old": "1 / 0", "new": "40 + 2"})),
        bash("echo $STAGE in $PWD; STAGE=mended"),
        "Mended.",
        bash("python3 main.py; echo $STAGE"),
        "It works.",
    )
    with Client(url) as client, SqliteSaver.from_conn_string(database) as saver:
        agent = create_agent(model, middleware=[SandboxMiddleware(client)], checkpointer=saver)
        return dict(agent.invoke(ask(), config(thread)))


def test_a_conversation_goes_on_in_another_process(
    agent_server: ServerProcess, client: Client, thread: str, tmp_path: Path
) -> None:
    where = (agent_server.url, thread, str(tmp_path / "conversations.sqlite"))
    first = repair(*where)
    assert "ZeroDivisionError" in results(first)[-1].text
    (session,) = sessions_of(client, thread)
    sandbox = session.info.sandbox_id
    assert in_another_process("repair", *where, module=__name__) == "Mended."
    last = repair(*where)
    assert last["messages"][-1].text == "It works."
    said = results(last)
    assert said[2].status == "error"
    assert said[4].text == "written in /workspace/app"
    assert said[5].text == "42\nmended"
    assert {message.artifact["session_id"] for message in said} == {session.id}
    (session,) = sessions_of(client, thread)
    assert (session.info.sandbox_id, session.generation) == (sandbox, 1)


def build(url: str, thread: str, database: str, resumed: str) -> dict[str, Any]:
    model = by_conversation(
        bash("echo run >> log; touch begun; until [ -e go ]; do sleep 0.05; done; echo built; STAGE=built"),
        bash("echo $STAGE; cat log"),
    )
    with Client(url) as client, SqliteSaver.from_conn_string(database) as saver:
        agent = create_agent(model, sandbox_tools(client), checkpointer=saver)
        return dict(agent.invoke(None if resumed else ask(), config(thread), durability="sync"))


def test_a_process_that_is_killed_in_a_command_is_taken_over_from(
    agent_server: ServerProcess, client: Client, thread: str, tmp_path: Path
) -> None:
    where = (agent_server.url, thread, str(tmp_path / "conversations.sqlite"))
    session = client.thread(thread)
    with another_process("build", *where, "", module=__name__) as process:
        deadline = time.monotonic() + 60
        while not session.files.exists("begun"):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.kill()
    session.files.write("go", "")
    state = build(*where, "resumed")
    assert [message.text for message in results(state)] == ["built", "built\nrun"]


# --- loss ---------------------------------------------------------------------------------------


@pytest.fixture
def own_server() -> Iterator[ServerProcess]:
    server = ServerProcess(pool_size="1", max_pool_size="2", orphan_grace_s="30")
    try:
        asyncio.run(server.start())
        yield server
    finally:
        asyncio.run(server.clean())


def test_a_lost_sandbox_is_reported_and_replaced_only_on_request(own_server: ServerProcess) -> None:
    model = by_conversation(
        bash("echo work > result.txt"),
        "Done.",
        bash("cat result.txt"),
        calls(("list_files", {})),
        "It is lost.",
        calls(("bash", {"restart": True})),
        bash("ls -A"),
        "A new one.",
    )
    with Client(own_server.url) as client:
        agent = create_agent(model, middleware=[SandboxMiddleware(client)], checkpointer=InMemorySaver())
        agent.invoke(ask(), config("lost"))
        (session,) = client.sessions()
        own_server.docker("rm", "-f", own_server.container_of(session))
        asyncio.run(own_server.kill())
        asyncio.run(own_server.start())

        state = agent.invoke(ask(), config("lost"))
        assert state["messages"][-1].text == "It is lost."
        for message in results(state)[-2:]:
            assert message.status == "error"
            assert "sandbox_lost" in message.text
            assert "Lost: " in message.text
            assert message.artifact["details"]["loss"]["generation"] == 1
        assert session.refresh().state is SessionState.LOST

        state = agent.invoke(ask(), config("lost"))
        new, listed = results(state)[-2:]
        assert "a new sandbox with the files in /workspace" in new.text
        assert listed.text == "result.txt"
        assert (listed.artifact["session_id"], listed.artifact["generation"]) == (session.id, 2)


# --- the middleware -----------------------------------------------------------------------------


class Listening(ByConversation):
    heard: list[list[BaseMessage]]

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        self.heard.append(messages)
        return super()._generate(messages)


@pytest.mark.parametrize(
    "system", [None, "You are a clerk.", SystemMessage([{"type": "text", "text": "You"}])]
)
def test_the_servers_prompt_goes_behind_the_system_prompt(
    client: Client, thread: str, system: str | SystemMessage | None
) -> None:
    (entry,) = [prompt for prompt in client.catalogue().prompts if prompt.name == "sandbox"]
    model = Listening(responses=[AIMessage("a"), AIMessage("b")], heard=[])
    agent = create_agent(model, middleware=[SandboxMiddleware(client)], system_prompt=system)
    agent.invoke(ask(), config(thread))
    asyncio.run(agent.ainvoke(ask(), config(thread)))
    for told, *_ in model.heard:
        assert isinstance(told, SystemMessage)
        assert told.text.endswith(entry.spec["text"])
        before = system.text if isinstance(system, SystemMessage) else system or ""
        assert told.text.startswith(before)
    assert sessions_of(client, thread) == []  # nothing is made before it is needed


def test_the_prompt_can_be_left_out(client: Client, thread: str) -> None:
    model = Listening(responses=[AIMessage("a")], heard=[])
    create_agent(model, middleware=[SandboxMiddleware(client, prompt=False)]).invoke(ask(), config(thread))
    assert [type(message) for message in model.heard[0]] == [HumanMessage]


def test_a_sandbox_is_kept_unless_its_end_is_asked_for(client: Client, thread: str) -> None:
    def run(cleanup: str, model: ByConversation, asynchronously: bool = False) -> list[Any]:
        agent = create_agent(model, middleware=[SandboxMiddleware(client, cleanup=cleanup)])  # type: ignore[arg-type]
        if asynchronously:
            asyncio.run(agent.ainvoke(ask(), config(thread)))
        else:
            agent.invoke(ask(), config(thread))
        return sessions_of(client, thread)

    works = by_conversation(bash("true"))
    assert len(run("keep", works)) == 1
    assert run("delete", works) == []
    assert run("delete", works, asynchronously=True) == []
    assert run("delete", by_conversation("nothing to do")) == []
    with pytest.raises(InvalidRequest, match="keep"):
        run("sometimes", works)


# --- subagents ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [None, "researcher"])
@pytest.mark.parametrize("shape", ["tool", "subgraph"])
def test_a_subagent_shares_its_parents_sandbox_or_has_its_own(
    client: Client, thread: str, name: str | None, shape: str
) -> None:
    look = bash("cat note.txt; echo $WHO; WHO=sub")
    if shape == "tool":
        sub = create_agent(by_conversation(look), sandbox_tools(client, name=name))

        @tool
        def research() -> str:
            """Asks the researcher."""
            return results(sub.invoke(ask()))[-1].text

        model = by_conversation(
            bash("echo here > note.txt; WHO=parent"), calls(("research", {})), bash("echo $WHO")
        )
        agent: Any = create_agent(model, [*sandbox_tools(client), research])
    else:
        graph = StateGraph(MessagesState)
        first = by_conversation(bash("echo here > note.txt; WHO=parent"), "over to you")
        graph.add_node("parent", create_agent(first, sandbox_tools(client)))
        graph.add_node("sub", create_agent(by_conversation("", "", look), sandbox_tools(client, name=name)))
        last = by_conversation(*[""] * 4, bash("echo $WHO"))
        graph.add_node("last", create_agent(last, sandbox_tools(client)))
        graph.add_edge(START, "parent")
        graph.add_edge("parent", "sub")
        graph.add_edge("sub", "last")
        agent = graph.compile()
    said = [message.text for message in results(agent.invoke(ask(), config(thread)))]
    if name is None:
        assert said[-2:] == ["here\nparent", "sub"]
        assert [session.thread for session in sessions_of(client, thread)] == [thread]
    else:
        assert "No such file" in said[-2]
        assert said[-1] == "parent"
        threads = {session.thread for session in sessions_of(client, thread)}
        assert threads == {thread, Sandboxes(client, name="researcher").thread_key(thread)}


# --- a graph built by hand ----------------------------------------------------------------------


class Work(TypedDict, total=False):
    command: str
    result: dict[str, Any]


def graph_of(node: Any, **options: Any) -> Any:
    graph = StateGraph(Work)
    graph.add_node("run", node)
    graph.add_edge(START, "run")
    graph.add_edge("run", END)
    return graph.compile(**options)


def test_a_command_as_a_node(client: Client, thread: str) -> None:
    graph = graph_of(bash_node(client))
    graph.invoke({"command": "cd /tmp; X=1"}, config(thread))
    result = graph.invoke({"command": "pwd; echo $X >&2; exit 3"}, config(thread))["result"]
    assert (result["stdout"], result["stderr"], result["exit_code"]) == ("/tmp\n", "1\n", 3)
    assert "[exit code 3]" in result["text"]
    again = asyncio.run(graph.ainvoke({"command": "echo from a loop"}, config(thread)))["result"]
    assert again["text"] == "from a loop"
    assert again["session_id"] == result["session_id"]
    with pytest.raises(InvalidRequest, match="'command'"):
        graph.invoke({"result": {}}, config(thread))
    with pytest.raises(InvalidRequest, match="thread_id"):
        graph.invoke({"command": "true"})


def test_a_node_that_is_executed_again_has_its_first_result(client: Client, thread: str) -> None:
    node = bash_node(client)
    crashes = iter([True])

    def run(state: Work) -> dict[str, Any]:
        done: dict[str, Any] = node.invoke(state)
        if next(crashes, False):
            raise ConnectionError("this machine dies here")
        return done

    graph = graph_of(run, checkpointer=InMemorySaver())
    with pytest.raises(ConnectionError):
        graph.invoke({"command": "echo run >> log; wc -l < log"}, config(thread))
    assert graph.invoke(None, config(thread))["result"]["text"] == "1"
    again = graph.invoke({"command": "echo run >> log; wc -l < log"}, config(thread))
    assert again["result"]["text"] == "2"


def test_two_commands_within_one_node_both_run(client: Client, thread: str) -> None:
    first, second = (bash_node(client, result_key=key) for key in ("one", "two"))

    def run(state: Work) -> dict[str, Any]:
        command = {"command": "echo run >> log; wc -l < log"}
        return {"result": {**first.invoke(command), **second.invoke(command)}}

    result = graph_of(run).invoke({}, config(thread))["result"]
    assert [result["one"]["text"], result["two"]["text"]] == ["1", "2"]


def test_another_attempt_of_a_retry_policy_runs_the_command_again(client: Client, thread: str) -> None:
    node = bash_node(client)

    def run(state: Work) -> dict[str, Any]:
        done: dict[str, Any] = node.invoke(state)
        if done["result"]["exit_code"] != 0:
            raise ConnectionError("not yet")
        return done

    graph = StateGraph(Work)
    graph.add_node("run", run, retry_policy=RetryPolicy(max_attempts=3, initial_interval=0.01))
    graph.add_edge(START, "run")
    graph.add_edge("run", END)
    command = "echo run >> log; [ $(wc -l < log) = 3 ]"
    assert graph.compile().invoke({"command": command}, config(thread))["result"]["exit_code"] == 0
