"""Deep agents with a scripted model: whole runs, in one process and in several, blocking and async."""

from __future__ import annotations

import asyncio
import hashlib
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from blockbuster import blockbuster_ctx
from deepagents import create_deep_agent
from deepagents.middleware.filesystem import FilesystemMiddleware
from langchain_core.messages import ToolMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.types import Command

from sandlot import AsyncClient, Client
from sandlot.domain.errors import InvalidRequest
from sandlot.integrations.deepagents import SandlotBackend
from sandlot.integrations.sandboxes import Sandboxes
from tests.faults.rig import ServerProcess
from tests.integrations.scripted import answers, by_conversation, calls, run_of, said, script

pytestmark = pytest.mark.docker

BROKEN = "import os\nprint(os.environ['NAME'].uper())\n"
PROCESS = """
import sys
from deepagents import create_deep_agent
from langgraph.checkpoint.sqlite import SqliteSaver
from sandlot import Client
from sandlot.integrations.deepagents import SandlotBackend
from tests.integrations.scripted import calls, script

url, database, thread, command = sys.argv[1:]
with Client(url) as client, SqliteSaver.from_conn_string(database) as saver:
    model = script(calls(("execute", {"command": command})), "done")
    agent = create_deep_agent(model, backend=SandlotBackend(client), checkpointer=saver)
    state = agent.invoke(
        {"messages": [("user", "go on")]}, {"configurable": {"thread_id": thread}}
    )
    print([message.content for message in state["messages"] if message.type == "tool"][-1])
"""


def second_process(server: ServerProcess, database: Path, thread: str, command: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PROCESS, server.url, str(database), thread, command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_one_conversation_over_three_invokes_in_two_processes(
    agent_server: ServerProcess, client: Client, thread: str, tmp_path: Path
) -> None:
    database = tmp_path / "checkpoints.sqlite"
    model = script(
        calls(("write_file", {"file_path": "/workspace/app.py", "content": BROKEN})),
        calls(("execute", {"command": "export NAME=ada; mkdir -p out; cd out; python ../app.py"})),
        "it fails",
        calls(("edit_file", {"file_path": "/workspace/app.py", "old_string": "uper", "new_string": "upper"})),
        calls(("execute", {"command": "python ../app.py | tee result"})),
        "it works",
    )
    with SqliteSaver.from_conn_string(str(database)) as saver:
        agent = create_deep_agent(model, backend=SandlotBackend(client), checkpointer=saver)
        _, failure = answers(agent.invoke(said("write it"), run_of(thread)))
        assert "has no attribute 'uper'" in str(failure.content)
        assert failure.artifact["exit_code"] == 1
        (first,) = client.sessions(thread=thread)
        _, success = answers(agent.invoke(said("mend it"), run_of(thread)))
        assert str(success.content).startswith("ADA\n")
        assert success.artifact["exit_code"] == 0

    process = second_process(agent_server, database, thread, "echo $NAME in $PWD has $(cat result)")
    output, errors = process.communicate(timeout=150)
    assert process.returncode == 0, errors
    assert output.startswith("ada in /workspace/out has ADA\n")
    (last,) = client.sessions(thread=thread)
    assert (last.id, last.generation, last.info.sandbox_id) == (first.id, 1, first.info.sandbox_id)


def test_a_step_that_is_resumed_by_another_process_runs_its_command_once(
    agent_server: ServerProcess, client: Client, thread: str, tmp_path: Path
) -> None:
    database = tmp_path / "checkpoints.sqlite"
    command = "echo run >> /workspace/runs; until [ -e /workspace/go ]; do sleep 0.05; done; echo finished"
    files = client.thread(thread).files
    process = second_process(agent_server, database, thread, command)
    try:
        deadline = time.monotonic() + 60
        while not files.exists("/workspace/runs"):
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        process.kill()
        process.communicate()
    files.write("/workspace/go", b"")
    with SqliteSaver.from_conn_string(str(database)) as saver:
        agent = create_deep_agent(script("done"), backend=SandlotBackend(client), checkpointer=saver)
        (answer,) = answers(agent.invoke(None, run_of(thread)))
    assert "finished" in str(answer.content)
    assert files.read("/workspace/runs") == b"run\n"


@pytest.mark.parametrize("how", ["invoke", "ainvoke"])
async def test_parallel_calls_of_a_first_turn_make_one_sandbox(client: Client, thread: str, how: str) -> None:
    """And commands that are given at the same time all succeed."""
    turn = calls(
        *(("execute", {"command": f"sleep 0.1; echo ran {number}"}) for number in range(6)),
        ("write_file", {"file_path": "/workspace/a", "content": "a"}),
        ("ls", {"path": "/workspace"}),
    )
    agent = create_deep_agent(
        script(turn, "done"), backend=SandlotBackend(client), checkpointer=InMemorySaver()
    )
    if how == "invoke":
        state = await asyncio.to_thread(agent.invoke, said("go"), run_of(thread))
    else:
        state = await agent.ainvoke(said("go"), run_of(thread))
    told = [str(answer.content) for answer in answers(state)]
    assert [text[:5] for text in told[:6]] == [f"ran {number}" for number in range(6)]
    (session,) = await asyncio.to_thread(lambda: list(client.sessions(thread=thread)))
    assert session.generation == 1


def test_one_backend_serves_several_event_loops_at_once(client: Client, thread: str) -> None:
    command = "echo $RANDOM-$$ > id; sleep 0.2; cat id id"
    agent = create_deep_agent(
        by_conversation(calls(("execute", {"command": command}))), backend=SandlotBackend(client)
    )

    def run(number: int) -> str:
        """On a thread and a loop of its own."""
        state = asyncio.run(agent.ainvoke(said("go"), run_of(f"{thread}/{number}")))
        return str(answers(state)[0].content)

    with ThreadPoolExecutor(3) as threads:
        told = list(threads.map(run, range(3)))
    assert len({text.split()[0] for text in told}) == 3
    assert all(text.split()[0] == text.split()[1] for text in told)


def test_a_command_that_waited_for_a_yes_runs_in_the_shell_as_it_was(client: Client, thread: str) -> None:
    model = script(
        calls(("execute", {"command": "export A=kept"})),
        calls(("execute", {"command": "echo $A | tee -a log; wc -l < log"})),
        "done",
    )
    agent = create_deep_agent(
        model, backend=SandlotBackend(client), checkpointer=InMemorySaver(), interrupt_on={"execute": True}
    )
    agent.invoke(said("go"), run_of(thread))
    yes = Command(resume={"decisions": [{"type": "approve"}]})
    agent.invoke(yes, run_of(thread))
    state = agent.invoke(yes, run_of(thread))
    assert str(answers(state)[-1].content).startswith("kept\n1\n")


def test_output_of_5_mb_is_kept_whole_where_the_model_is_told(client: Client, thread: str) -> None:
    """Its tools find it there, and so do commands, under the name that those can use."""
    model = script(
        calls(("execute", {"command": "seq 1 750000 | tee /workspace/expected"}), tag="large"),
        calls(
            ("read_file", {"file_path": "/large_tool_results/large-0", "offset": 700_000, "limit": 3}),
            ("grep", {"pattern": "749999", "path": "/large_tool_results", "output_mode": "content"}),
            (
                "execute",
                {"command": "cmp /workspace/expected /workspace/.deepagents/large_tool_results/large-0"},
            ),
        ),
        "done",
    )
    agent = create_deep_agent(model, backend=SandlotBackend(client), checkpointer=InMemorySaver())
    large, read, found, compared = answers(agent.invoke(said("go"), run_of(thread)))
    path = "/large_tool_results/large-0"
    assert large.artifact == {"exit_code": 0, "truncated": False, "output_file": path}
    text = str(large.content)
    assert len(text) < 6000
    assert f"saved in the filesystem at this path: {path}" in text
    assert f"the full output is in /workspace/.deepagents{path}" in text
    assert "1\n2\n3\n" in text
    assert text.rstrip().endswith("750000")
    assert "700001" in str(read.content)
    assert "700003" in str(read.content)
    assert "700004" not in str(read.content)
    assert path in str(found.content)
    assert "749999" in str(found.content)
    assert compared.artifact["exit_code"] == 0, compared.content


def test_a_file_of_5_mb_is_written(client: Client, thread: str) -> None:
    """No command line is involved, whose length is limited."""
    content = "0123456789abcde\n" * 320_000
    model = script(
        calls(("write_file", {"file_path": "/workspace/large.txt", "content": content})),
        calls(("execute", {"command": "sha256sum large.txt"})),
        "done",
    )
    agent = create_deep_agent(model, backend=SandlotBackend(client), checkpointer=InMemorySaver())
    _, summed = answers(agent.invoke(said("go"), run_of(thread)))
    assert str(summed.content).split()[0] == hashlib.sha256(content.encode()).hexdigest()


@pytest.mark.parametrize("own", [False, True], ids=["shared", "own"])
def test_a_subagent_shares_the_sandbox_or_has_its_own(client: Client, thread: str, own: bool) -> None:
    backend = SandlotBackend(client)
    helper: dict[str, Any] = {
        "name": "researcher",
        "description": "looks things up",
        "system_prompt": "Look.",
        "model": script(
            calls(("execute", {"command": "cat /workspace/note || echo nothing here"}), tag="sub"), "looked"
        ),
    }
    if own:
        helper["middleware"] = [FilesystemMiddleware(backend=SandlotBackend(client, name="researcher"))]
    seen: list[str] = []
    model = script(
        calls(("write_file", {"file_path": "/workspace/note", "content": "from the parent"})),
        calls(("task", {"description": "look", "subagent_type": "researcher"})),
        "done",
    )
    agent = create_deep_agent(model, backend=backend, subagents=[helper], checkpointer=InMemorySaver())
    for _, update in agent.stream(said("go"), run_of(thread), stream_mode="updates", subgraphs=True):
        for part in update.values():
            messages = part.get("messages", []) if isinstance(part, dict) else []
            seen += [str(m.content) for m in messages if isinstance(m, ToolMessage) and m.name == "execute"]
    expected = "nothing here" if own else "from the parent"
    assert [expected in text for text in seen] == [True]
    used = {s.thread for s in client.sessions() if s.thread is not None and s.thread.startswith(thread)}
    threads = {thread, Sandboxes(client, name="researcher").thread_key(thread)} if own else {thread}
    assert used == threads


@pytest.mark.parametrize("kind", ["Client", "AsyncClient"])
async def test_nothing_of_ours_blocks_an_event_loop(
    agent_server: ServerProcess, client: Client, thread: str, kind: str
) -> None:
    """The loop of the caller and that of the client: both are watched."""
    model = script(
        calls(("write_file", {"file_path": "/workspace/a.txt", "content": "one\ntwo\n"})),
        calls(("edit_file", {"file_path": "/workspace/a.txt", "old_string": "two", "new_string": "2"})),
        calls(
            ("ls", {"path": "/workspace"}),
            ("read_file", {"file_path": "/workspace/a.txt"}),
            ("glob", {"pattern": "*.txt"}),
            ("grep", {"pattern": "one", "path": "/workspace"}),
            ("execute", {"command": "cat a.txt; seq 1 100000"}),
            ("execute", {"command": "sleep 0.2; exit 3"}),
            ("execute", {"command": "sleep 10", "timeout": 1}),
        ),
        calls(("delete", {"file_path": "/workspace/a.txt"})),
        "done",
    )
    async with AsyncClient(agent_server.url) as async_client:
        used = client if kind == "Client" else async_client
        agent = create_deep_agent(model, backend=SandlotBackend(used), checkpointer=InMemorySaver())
        with blockbuster_ctx():
            state = await agent.ainvoke(said("go"), run_of(thread))
    told = answers(state)
    assert [answer.status for answer in told] == ["success"] * 10
    assert [answer.artifact["exit_code"] for answer in told if answer.name == "execute"] == [0, 3, 124]


def test_a_run_without_a_thread_says_what_is_missing(client: Client) -> None:
    model = script(calls(("execute", {"command": "echo"})), "done")
    agent = create_deep_agent(model, backend=SandlotBackend(client))
    with pytest.raises(InvalidRequest, match="thread_id"):
        agent.invoke(said("go"))
