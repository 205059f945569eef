"""Ways in which a graph reaches its sandbox, and what time travel makes of them; on the fake."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.tools import tool
from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.types import Command
from tests.integrations.langchain_runs import ask, bash, config
from tests.integrations.scripted import by_conversation, calls, results

from sandlot import AsyncClient, Client
from sandlot.domain.errors import Conflict, InvalidRequest, NotFound, Unsupported
from sandlot.integrations.langchain import (
    ApprovalPolicy,
    SandboxMiddleware,
    SandboxState,
    bash_node,
    sandbox_tools,
    snapshot_of,
)
from sandlot.integrations.langchain.time_travel import merge_snapshots
from sandlot.testing.fake import FakeService
from sandlot.testing.fake.workspaces.store import FakeStore


@pytest.fixture
def fake() -> FakeService:
    return FakeService()


@pytest.fixture
def client(fake: FakeService) -> Iterator[Client]:
    with Client(service=fake) as client:
        yield client


def agent_of(client: Any, *messages: Any, **how: Any) -> Any:
    saver = how.pop("checkpointer", None) or InMemorySaver()
    middleware = [SandboxMiddleware(client, prompt=False, time_travel=True, **how)]
    return create_agent(by_conversation(*messages), middleware=middleware, checkpointer=saver)


def checkpoint(graph: Any, thread: str, *, results_before: int, then: str) -> Any:
    """The first one with so many results, before the named node."""
    found = [
        each
        for each in graph.get_state_history(config(thread))
        if len(results(each.values)) == results_before and each.next and set(each.next) == {then}
    ]
    return found[-1].config


def together(*commands: str) -> AIMessage:
    return calls(*(("bash", {"command": command}) for command in commands))


LIST = bash("ls")


@pytest.mark.parametrize("at_once", [8, 1])
def test_parallel_calls_are_one_step(client: Client, at_once: int) -> None:
    """Also one after the other, when the first has ended before the second begins."""
    agent = agent_of(client, bash("touch a"), together("touch b", "touch c; rm a", "touch d"), LIST, "done")
    how = {**config("t"), "max_concurrency": at_once}
    assert results(agent.invoke(ask(), how))[-1].text == "b\nc\nd"
    before = checkpoint(agent, "t", results_before=1, then="tools")
    after = checkpoint(agent, "t", results_before=4, then="model")
    for _ in range(2):
        assert results(agent.invoke(None, {**before, "max_concurrency": at_once}))[-1].text == "b\nc\nd"
        assert results(agent.invoke(None, {**after, "max_concurrency": at_once}))[-1].text.endswith("b\nc\nd")
    assert client.thread("t").generation > 1


def test_a_step_that_changes_nothing_leaves_no_snapshot(client: Client) -> None:
    agent = agent_of(client, bash("touch a"), LIST, calls(("read_file", {"path": "a"})), LIST, "done")
    agent.invoke(ask(), config("t"))
    base, taken = client.snapshots()
    assert (base.labels, taken.labels) == ({"sandlot.base": "true"}, {})
    assert snapshot_of(agent.get_state(config("t")).values) == taken.id
    assert client.thread("t").generation == 1


def test_the_model_is_told_of_the_new_sandbox_once(client: Client) -> None:
    agent = agent_of(client, bash("touch a"), bash("touch b"), LIST, LIST, "done")
    agent.invoke(ask(), config("t"))
    again = agent.invoke(None, checkpoint(agent, "t", results_before=1, then="model"))
    assert [message.text for message in results(again)][1:] == [
        "[this is a new sandbox. Its files in /workspace are those of a snapshot. The variables and processes "
        "of the previous sandbox are gone]\n(no output)",
        "a\nb",
        "a\nb",
    ]


def test_a_copied_thread_has_files_of_its_own(client: Client) -> None:
    saver = InMemorySaver()
    agent = agent_of(client, bash("touch a"), bash("touch b"), LIST, "done", checkpointer=saver)
    agent.invoke(ask(), config("t"))
    for each in list(saver.list(checkpoint(agent, "t", results_before=1, then="model")))[::-1]:
        there = {"configurable": {"thread_id": "copy", "checkpoint_ns": ""}}
        if each.parent_config is not None:
            there["configurable"]["checkpoint_id"] = each.parent_config["configurable"]["checkpoint_id"]
        saver.put(there, each.checkpoint, each.metadata, each.checkpoint["channel_versions"])
    client.thread("t").files.write("later", "")
    copied = agent.get_state(config("copy"))
    assert copied.next == ("model",)
    assert results(agent.invoke(None, config("copy")))[-1].text == "a\nb"
    copy = client.thread("copy")
    assert (copy.id != client.thread("t").id, copy.generation) == (True, 1)
    copy.files.write("mine", "")
    assert {entry.name for entry in client.thread("t").files.list(".")} == {"a", "b", "later"}


def test_a_thread_goes_on_after_its_session_has_ended(client: Client) -> None:
    agent = agent_of(client, bash("echo kept > a"), "done", bash("cat a"), "done")
    agent.invoke(ask(), config("t"))
    client.thread("t").delete()
    assert results(agent.invoke(ask(), config("t")))[-1].text.endswith(
        "processes of the previous sandbox are gone]\nkept"
    )


def test_what_a_person_does_between_runs_stays(client: Client) -> None:
    agent = agent_of(client, bash("touch a"), "done", LIST, "done", LIST, "done")
    agent.invoke(ask(), config("t"))
    session = client.thread("t")
    session.files.write("upload", "")
    assert results(agent.invoke(ask(), config("t")))[-1].text == "a\nupload"

    (fork,) = session.fork()
    fork.files.write("best", "")
    promoted = fork.workspace.snapshot("the best")
    agent.update_state(config("t"), {"sandlot_snapshot": promoted.id})
    assert results(agent.invoke(ask(), config("t")))[-1].text.endswith("a\nbest\nupload")


def test_approval_does_not_end_a_step(client: Client) -> None:
    agent = agent_of(
        client,
        bash("touch old"),
        together("touch new", "rm -r old"),
        LIST,
        "done",
        approval=ApprovalPolicy(),
    )
    state = agent.invoke(ask(), config("t"))
    (asked,) = state["__interrupt__"]
    resumed = agent.invoke(Command(resume={asked.id: {"type": "approve"}}), config("t"))
    assert results(resumed)[-1].text == "new"
    again = agent.invoke(None, checkpoint(agent, "t", results_before=1, then="model"))
    assert again["__interrupt__"]
    names = {entry.name for entry in client.thread("t").files.list(".")}
    assert names == {"old", "new"}


def test_a_subagent_shares_its_parents_step(client: Client) -> None:
    inner = create_agent(
        by_conversation(bash("touch inner-1"), bash("touch inner-2; ls"), "inner done"),
        middleware=[SandboxMiddleware(client, prompt=False, time_travel=True)],
    )

    @tool
    def delegate() -> str:
        """Let a subagent do it."""
        return str(results(inner.invoke(ask()))[-1].text)

    agent = create_agent(
        by_conversation(bash("touch a"), calls(("delegate", {})), bash("touch b"), "done"),
        [delegate],
        middleware=[SandboxMiddleware(client, prompt=False, time_travel=True)],
        checkpointer=InMemorySaver(),
    )
    state = agent.invoke(ask(), config("t"))
    assert results(state)[1].text == "a\ninner-1\ninner-2"
    after = checkpoint(agent, "t", results_before=2, then="model")
    agent.invoke(None, after)
    assert {entry.name for entry in client.thread("t").files.list(".")} == {"a", "b", "inner-1", "inner-2"}


class Own(MessagesState, SandboxState):
    command: str
    result: dict[str, Any]


def own_graph(client: Client, *messages: Any, state: type = Own) -> Any:
    graph = StateGraph(state)
    model = by_conversation(*messages)
    graph.add_node("model", lambda state: {"messages": [model.invoke(state["messages"])]})
    graph.add_node("tools", ToolNode(sandbox_tools(client, time_travel=True)))
    graph.add_node("bash", bash_node(client, time_travel=True))
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", tools_condition, {"tools": "tools", "__end__": "bash"})
    graph.add_edge("tools", "model")
    return graph


def test_hand_built_graphs(client: Client) -> None:
    graph = own_graph(client, bash("touch a"), together("touch b", "false"), bash("touch c"), "done").compile(
        checkpointer=InMemorySaver()
    )
    given = {**ask(), "command": "touch node; ls"}
    state = graph.invoke(given, config("t"))
    assert state["result"]["stdout"] == "a\nb\nc\nnode\n"
    assert [message.status for message in results(state)] == ["success"] * 4
    for _ in range(2):
        back = graph.invoke(None, checkpoint(graph, "t", results_before=1, then="model"))
        assert back["result"]["stdout"] == "a\nb\nc\nnode\n"
        before = checkpoint(graph, "t", results_before=4, then="bash")
        assert graph.invoke(None, before)["result"]["stdout"] == "a\nb\nc\nnode\n"


async def test_with_asyncio(fake: FakeService) -> None:
    async with AsyncClient(service=fake) as client:
        agent = agent_of(client, bash("touch a"), together("touch b", "touch c"), LIST, "done")
        assert results(await agent.ainvoke(ask(), config("t")))[-1].text == "a\nb\nc"
        back = await agent.ainvoke(None, checkpoint(agent, "t", results_before=1, then="model"))
        assert results(back)[-1].text == "a\nb\nc"


def test_without_a_checkpointer_it_is_refused(client: Client) -> None:
    agent = create_agent(
        by_conversation(bash("touch a")),
        middleware=[SandboxMiddleware(client, prompt=False, time_travel=True)],
    )
    with pytest.raises(InvalidRequest, match="needs a checkpointer"):
        agent.invoke(ask(), config("t"))


class Without(MessagesState):
    command: str


def test_without_the_channel_it_is_refused(client: Client) -> None:
    graph = own_graph(client, bash("touch a"), "done", state=Without).compile(checkpointer=InMemorySaver())
    with pytest.raises(InvalidRequest, match="needs 'sandlot_snapshot' in the graph's state"):
        graph.invoke(ask(), config("t"))


def test_a_server_without_snapshots_is_an_error_of_the_run() -> None:
    service = FakeService(store=FakeStore(snapshots=False))
    with Client(service=service) as client, pytest.raises(Unsupported, match="cannot take snapshots"):
        agent_of(client, bash("touch a"), "done").invoke(ask(), config("t"))


def test_files_that_are_gone_are_an_error_of_the_run(client: Client) -> None:
    agent = agent_of(client, bash("touch a"), bash("touch b"), "done")
    agent.invoke(ask(), config("t"))
    for snapshot in client.snapshots():
        client.delete_snapshot(snapshot.id)
    with pytest.raises(NotFound, match="does not exist"):
        agent.invoke(None, checkpoint(agent, "t", results_before=1, then="model"))
    assert {entry.name for entry in client.thread("t").files.list(".")} == {"a", "b"}


def test_a_step_that_was_overtaken_can_be_repeated(client: Client) -> None:
    others = ["of another program"]
    run_bash = sandbox_tools(client)[0]

    @tool
    def work(config: RunnableConfig) -> str:
        """Work in the sandbox. The first time, another program goes back before it has ended."""
        run_bash.invoke({"command": "touch b"}, config)
        if others:
            client.thread("t").workspace.begin_step(others.pop())
            client.thread("t").files.write("of-the-other", "")
        return "worked"

    agent = create_agent(
        by_conversation(bash("touch a"), calls(("work", {})), LIST, "done"),
        [work],
        middleware=[SandboxMiddleware(client, prompt=False, time_travel=True)],
        checkpointer=InMemorySaver(),
    )
    with pytest.raises(Conflict, match="no longer those of this step"):
        agent.invoke(ask(), config("t"))
    assert {entry.name for entry in client.thread("t").files.list(".")} == {"of-the-other"}
    assert results(agent.invoke(None, config("t")))[-1].text == "a\nb"


def test_the_latest_of_parallel_snapshots_counts() -> None:
    one = {"": {"snapshot": "1", "step": "s", "at": 1.0}}
    two = {"": {"snapshot": "2", "step": "s", "at": 2.0}}
    earlier = {"": {"snapshot": "3", "step": "t", "at": 0.5}, "x": {"snapshot": "4", "step": "t", "at": 0.5}}
    assert merge_snapshots(one, two) == merge_snapshots(two, one) == two
    assert merge_snapshots(two, earlier) == earlier
    assert merge_snapshots(earlier, one) == {**earlier, **one}
    assert merge_snapshots(None, "5") == {"": {"snapshot": "5"}}
    assert merge_snapshots(merge_snapshots(one, "5"), one) == one
    assert snapshot_of({"sandlot_snapshot": earlier}, "x") == "4"
    assert snapshot_of({}) is None
