"""LangChain's own shell tool, with its shell in the conversation's sandbox."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware, ShellToolMiddleware
from langchain_core.messages import AIMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command

from sandlot import Client
from sandlot.domain.errors import InvalidRequest
from sandlot.integrations.langchain import SandlotShellPolicy
from tests.faults.rig import ServerProcess
from tests.integrations.langchain_runs import ask, config
from tests.integrations.scripted import by_conversation, calls, results

pytestmark = [
    pytest.mark.docker,
    # LangChain's shell leaves its pipes to the garbage collector.
    pytest.mark.filterwarnings("ignore:unclosed file <_io.TextIOWrapper:ResourceWarning"),
]


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    yield
    gc.collect()  # here, and not in a test to which the warnings of these are news


def shell(command: str) -> AIMessage:
    return calls(("shell", {"command": command}))


RESTART = calls(("shell", {"restart": True}))


def agent_of(
    server: ServerProcess,
    *said: AIMessage | str,
    middleware: tuple[Any, ...] = (),
    startup_commands: tuple[str, ...] = ("export STARTED=yes",),
    **options: Any,
) -> Any:
    policy = SandlotShellPolicy(url=server.url, **options)
    tools = ShellToolMiddleware(execution_policy=policy, startup_commands=startup_commands)
    return create_agent(by_conversation(*said), middleware=[tools, *middleware], checkpointer=InMemorySaver())


def eventually_gone(client: Client, thread: str, process: str) -> None:
    deadline = time.monotonic() + 30
    session = client.thread(thread)
    while session.run(f"pgrep -f {process}", shell=None).exit_code == 0:
        assert time.monotonic() < deadline, f"{process} still runs"
        time.sleep(0.1)


@pytest.mark.parametrize("asynchronously", [False, True])
def test_the_shell_stays_from_run_to_run(
    agent_server: ServerProcess, client: Client, thread: str, asynchronously: bool
) -> None:
    agent = agent_of(
        agent_server,
        shell("mkdir -p app; cd app; COLOUR=blue; greet() { echo hello $1; }; echo $STARTED"),
        shell("echo no newline >&2; printf half; exit_code=5; (exit 5)"),
        "so",
        shell("pwd; echo $COLOUR; greet you"),
        "so",
    )

    def run() -> Any:
        if asynchronously:
            return asyncio.run(agent.ainvoke(ask(), config(thread)))
        return agent.invoke(ask(), config(thread))

    run()
    first, second, third = results(run())
    assert first.text == "yes\n"
    assert "half" in second.text
    assert "[stderr] no newline" in second.text
    assert second.text.endswith("Exit code: 5")
    assert third.text == "/workspace/app\nblue\nhello you\n"
    assert [session.thread for session in client.sessions() if session.thread == thread] == [thread]


def test_the_shell_is_the_sandboxes_main_one(
    agent_server: ServerProcess, client: Client, thread: str
) -> None:
    client.thread(thread).shell().run("cd /tmp; X=from-the-sdk")
    (said,) = results(agent_of(agent_server, shell("pwd; echo $X")).invoke(ask(), config(thread)))
    assert said.text == "/tmp\nfrom-the-sdk\n"


def test_the_shell_stays_through_an_interrupt(
    agent_server: ServerProcess, client: Client, thread: str
) -> None:
    review = HumanInTheLoopMiddleware({"shell": {"allowed_decisions": ["approve"], "when": _has_rm}})
    agent = agent_of(
        agent_server, shell("cd /tmp; X=kept"), shell("rm -f y; pwd; echo $X"), middleware=(review,)
    )
    assert "__interrupt__" in agent.invoke(ask(), config(thread))
    gc.collect()  # the first process goes with the run's resources
    state = agent.invoke(Command(resume={"decisions": [{"type": "approve"}]}), config(thread))
    assert results(state)[-1].text == "/tmp\nkept\n"


def _has_rm(request: Any) -> bool:
    return "rm " in request.tool_call["args"]["command"]


def test_that_a_sandbox_has_ended_is_told(agent_server: ServerProcess, client: Client, thread: str) -> None:
    agent = agent_of(agent_server, shell("touch mine"), "so", shell("ls"), startup_commands=())
    agent.invoke(ask(), config(thread))
    client.thread(thread).delete()
    said = results(agent.invoke(ask(), config(thread)))[-1]
    assert "[stderr] [this is a new, empty sandbox" in said.text


def test_what_is_restarted_is_new(agent_server: ServerProcess, client: Client, thread: str) -> None:
    agent = agent_of(
        agent_server, shell("cd /tmp; X=1; touch /workspace/file"), RESTART, shell("pwd; echo [$X]; ls")
    )
    assert results(agent.invoke(ask(), config(thread)))[-1].text == "/workspace\n[]\nfile\n"


def test_a_command_that_takes_too_long_ends_and_all_that_it_started(
    agent_server: ServerProcess, client: Client, thread: str
) -> None:
    agent = agent_of(
        agent_server,
        shell("sleep 4711 & sleep 4712"),
        shell("echo again"),
        command_timeout=5.0,  # in which the second one has to be done, too
        startup_timeout=30.0,
    )
    slow, again = results(agent.invoke(ask(), config(thread)))
    assert slow.artifact["timed_out"]
    assert "timed out" in slow.text
    assert again.text == "again\n"
    eventually_gone(client, thread, "[s]leep.471")


def test_a_program_that_dies_takes_its_command_along(
    agent_server: ServerProcess, client: Client, thread: str, tmp_path: Path
) -> None:
    """Its input ends with it, as when the machine of the agent dies; the command's timeout is the last resort."""
    policy = SandlotShellPolicy(url=agent_server.url)
    spawned = []

    def spawn(state: MessagesState) -> None:
        spawned.append(policy.spawn(workspace=tmp_path, env={}, command=("bash",)))

    graph = StateGraph(MessagesState)
    graph.add_node("spawn", spawn)
    graph.add_edge(START, "spawn")
    graph.compile().invoke(ask(), config(thread))
    (process,) = spawned
    assert process.stdin
    assert process.stdout
    assert process.stderr
    process.stdin.write(f"sleep 4713\nprintf '__LC_SHELL_DONE__{'0' * 32} %s\\n' $?\n")
    process.stdin.flush()
    session = client.thread(thread)
    deadline = time.monotonic() + 30
    while session.run("pgrep -f '[s]leep.4713'").exit_code != 0:
        assert time.monotonic() < deadline, "it never ran"
        time.sleep(0.1)
    process.stdin.close()
    assert process.wait(30) == 0
    process.stdout.close()
    process.stderr.close()
    eventually_gone(client, thread, "[s]leep.4713")


def test_a_command_that_reads_its_input_does_not_swallow_the_marker(
    agent_server: ServerProcess, client: Client, thread: str
) -> None:
    agent = agent_of(
        agent_server,
        shell("cat; set | grep LC_SHEL[L] || echo unknown"),
        shell("(exit 4)\nprintf 'code %s\\n' $?"),
        shell("exit 3"),
    )
    read, printed, ended = results(agent.invoke(ask(), config(thread)))
    assert read.text == "unknown\n"
    assert printed.text == "code 4\n"
    assert ended.text.endswith("Exit code: 3")


def test_a_long_command_runs_and_one_that_is_too_long_is_refused(
    agent_server: ServerProcess, client: Client, thread: str
) -> None:
    """Within the middleware's timeout, which a search of all of the input at each piece of it would exceed."""
    agent = agent_of(
        agent_server,
        shell(f"echo {'x' * 3_000_000} | wc -c"),
        shell(f"echo {'x' * 12_000_000} | wc -c"),
        shell("echo again"),
    )
    long, too_long, again = results(agent.invoke(ask(), config(thread)))
    assert long.text == "3000001\n"
    assert "exceeds 3145728 bytes and was not run" in too_long.text
    assert too_long.text.endswith("Exit code: 1")
    assert again.text == "again\n"


def test_variables_of_the_middleware(agent_server: ServerProcess, thread: str, client: Client) -> None:
    tools = ShellToolMiddleware(
        execution_policy=SandlotShellPolicy(url=agent_server.url), env={"TOKEN": "abc"}
    )
    agent = create_agent(by_conversation(shell("echo $TOKEN; echo ${SANDLOT_URL-unset}")), middleware=[tools])
    assert results(agent.invoke(ask(), config(thread)))[0].text == "abc\nunset\n"


def test_without_a_thread_or_with_another_shell(
    agent_server: ServerProcess, client: Client, thread: str
) -> None:
    policy = SandlotShellPolicy(url=agent_server.url)
    agent = create_agent(by_conversation(), middleware=[ShellToolMiddleware(execution_policy=policy)])
    with pytest.raises(InvalidRequest, match="thread_id"):
        agent.invoke(ask())
    other = ShellToolMiddleware(execution_policy=policy, shell_command="/bin/zsh")
    with pytest.raises(InvalidRequest, match="bash"):
        create_agent(by_conversation(), middleware=[other]).invoke(ask(), config(thread))


def test_a_server_that_is_away_is_told_to_the_model(client: Client, thread: str) -> None:
    tools = ShellToolMiddleware(execution_policy=SandlotShellPolicy(url="http://127.0.0.1:9"))
    state = create_agent(by_conversation(shell("echo hello")), middleware=[tools]).invoke(
        ask(), config(thread)
    )
    (said,) = results(state)
    assert said.status == "error"
    assert "unavailable" in said.text
