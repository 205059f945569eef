"""Deep agents whose sandbox is gone: the model is told, and nothing is replaced unasked."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterator

import pytest
from deepagents import create_deep_agent
from langgraph.checkpoint.memory import InMemorySaver

from sandlot import Client
from sandlot.integrations.deepagents import SandlotBackend
from tests.faults.rig import ServerProcess
from tests.integrations.scripted import answers, calls, run_of, said, script

pytestmark = pytest.mark.docker


@pytest.fixture
def other_server() -> Iterator[ServerProcess]:
    """One that a test may stop and start again."""
    server = ServerProcess()
    try:
        asyncio.run(server.start())
        yield server
    finally:
        asyncio.run(server.clean())


@pytest.mark.parametrize("restarted", [False, True], ids=["served", "restarted"])
def test_a_lost_sandbox_is_reported_to_the_model_and_not_replaced(
    other_server: ServerProcess, restarted: bool
) -> None:
    thread = f"thread-{secrets.token_hex(6)}"
    model = script(
        calls(("execute", {"command": "echo kept > /workspace/file"})),
        "done",
        calls(
            ("execute", {"command": "cat /workspace/file"}), ("read_file", {"file_path": "/workspace/file"})
        ),
        calls(("ls", {"path": "/workspace"})),
        "it is lost",
        calls(("ls", {"path": "/workspace"}), ("execute", {"command": "echo anew"})),
        "done",
    )
    with Client(other_server.url) as client:
        backend = SandlotBackend(client)
        agent = create_deep_agent(model, backend=backend, checkpointer=InMemorySaver())
        agent.invoke(said("one"), run_of(thread))
        (before,) = client.sessions(thread=thread)
        if restarted:
            asyncio.run(other_server.terminate())
        other_server.docker("rm", "--force", f"sandlot-{before.info.sandbox_id}")
        if restarted:
            asyncio.run(other_server.start())

        state = agent.invoke(said("two"), run_of(thread))
        told = [str(answer.content) for answer in answers(state)]
        assert len(told) == 3
        for text in told:
            assert "sandbox_lost" in text
            assert "files in /tmp" in text
            assert "ask for a new sandbox" in text
        assert state["messages"][-1].content == "it is lost"
        (lost,) = client.sessions(thread=thread)
        assert (lost.id, lost.generation, lost.info.sandbox_id) == (before.id, 1, None)

        if restarted:
            asyncio.run(backend.arecreate(thread))
        else:
            backend.recreate(thread)
        listed, ran = answers(agent.invoke(said("three"), run_of(thread)))
        assert "/workspace/file" in str(listed.content)
        told, _, rest = str(ran.content).partition("\n")
        assert told.startswith("[this is a new sandbox. The previous one was lost")
        assert "its files in /workspace are still here" in told
        assert rest.startswith("anew\n")
        (after,) = client.sessions(thread=thread)
        assert (after.id, after.generation) == (before.id, 2)


def test_a_conversation_whose_sandbox_ended_is_told_that_it_has_a_new_one(
    client: Client, thread: str
) -> None:
    model = script(
        calls(("execute", {"command": "export A=1; echo one"})),
        "done",
        calls(("ls", {"path": "/workspace"})),
        calls(("execute", {"command": "echo two"})),
        calls(("execute", {"command": "echo three"})),
        "done",
    )
    agent = create_deep_agent(model, backend=SandlotBackend(client), checkpointer=InMemorySaver())
    (first,) = answers(agent.invoke(said("one"), run_of(thread)))
    assert str(first.content).startswith("one\n")
    for session in client.sessions(thread=thread):
        session.delete()
    _, second, third = answers(agent.invoke(said("two"), run_of(thread)))
    assert "new, empty sandbox" in str(second.content)
    assert "two\n" in str(second.content)
    assert str(third.content).startswith("three\n")
