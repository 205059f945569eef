"""A denied connection becomes a question to a person, and the command runs once more if they allow it."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from langchain.agents import create_agent
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.types import Command
from pydantic import ValidationError

from sandlot import Client
from sandlot.integrations.langchain import ApprovalPolicy, NetworkApproval, SandboxMiddleware
from sandlot.testing import FakeSandlot
from tests.faults.rig import ServerProcess
from tests.integrations.langchain_runs import ask, bash, config, in_another_process
from tests.integrations.scripted import by_conversation, results

CURL = "echo tried >> log; curl -sS https://a.sandlot.example"
APPROVE = Command(resume={"type": "approve"})


def paused(client: Client, command: str = CURL, **options: Any) -> tuple[Any, Any]:
    middleware = SandboxMiddleware(client, network_approval=NetworkApproval(for_s=600), **options)
    model = by_conversation(bash(command), bash("cat log"))
    agent = create_agent(model, middleware=[middleware], checkpointer=InMemorySaver())
    (question,) = agent.invoke(ask(), config("one"))["__interrupt__"]
    return agent, question.value


@pytest.mark.parametrize("asynchronously", [False, True])
def test_approved_the_command_runs_once_more(asynchronously: bool) -> None:
    with FakeSandlot().sync_client() as client:
        agent, question = paused(client)
        assert (question["type"], question["name"]) == ("tool_approval", "allow_network")
        assert question["args"] == {"entries": ["a.sandlot.example"], "for_s": 600, "command": CURL}
        assert "may not connect to a.sandlot.example" in question["description"]
        session = client.thread("one")
        assert session.network.status().grants == ()
        if asynchronously:
            state = asyncio.run(agent.ainvoke(APPROVE, config("one")))
        else:
            state = agent.invoke(APPROVE, config("one"))
        again, log = results(state)
        assert "Could not resolve host" in again.text  # allowed: the fake has no such host
        assert again.artifact["denied"] == []
        assert log.text == "tried\ntried"
        assert [grant.entry for grant in session.network.status().grants] == ["a.sandlot.example"]


def test_rejected_the_model_is_told_and_nothing_is_allowed() -> None:
    with FakeSandlot().sync_client() as client:
        agent, _ = paused(client)
        state = agent.invoke(Command(resume={"type": "reject", "message": "use the mirror"}), config("one"))
        refused, log = results(state)
        assert "[the user refused to allow the connection: use the mirror]" in refused.text
        assert log.text == "tried"
        assert client.thread("one").network.status().grants == ()


def test_an_answer_that_makes_no_sense_can_be_given_again() -> None:
    with FakeSandlot().sync_client() as client:
        agent, _ = paused(client)
        with pytest.raises(ValidationError):
            agent.invoke(Command(resume={"type": "perhaps"}), config("one"))
        assert results(agent.invoke(APPROVE, config("one")))[-1].text == "tried\ntried"


def test_a_command_that_a_person_approved_is_not_asked_about_again() -> None:
    """First the command's own question, then the network's. The second run asks nothing."""
    policy = {"name": "a", "rules": [{"name": "curl", "ruling": "ask", "program": "curl", "reason": "x"}]}
    with FakeSandlot().sync_client() as client:
        agent, question = paused(client, approval=ApprovalPolicy(policy))
        assert question["name"] == "bash"
        (network,) = agent.invoke(APPROVE, config("one"))["__interrupt__"]
        assert network.value["name"] == "allow_network"
        assert results(agent.invoke(APPROVE, config("one")))[-1].text == "tried\ntried"


def test_what_no_grant_can_allow_is_not_asked_about() -> None:
    with FakeSandlot().sync_client() as client:
        middleware = SandboxMiddleware(
            client, network={"deny": ["a.sandlot.example"]}, network_approval=NetworkApproval()
        )
        agent = create_agent(
            by_conversation(bash(CURL)), middleware=[middleware], checkpointer=InMemorySaver()
        )
        (denied,) = results(agent.invoke(ask(), config("one")))
        assert "the network policy denied a.sandlot.example:443 (deny: a.sandlot.example)" in denied.text


def test_without_the_option_the_model_is_told() -> None:
    with FakeSandlot().sync_client() as client:
        agent = create_agent(by_conversation(bash(CURL)), middleware=[SandboxMiddleware(client)])
        (denied,) = results(agent.invoke(ask(), config("one")))
        assert denied.status == "success"  # the command did its work, and failed
        assert "[the network policy denied a.sandlot.example:443 (not allowed)." in denied.text
        assert "ask the user to allow it" in denied.text


# --- with a real sandbox, and a real host --------------------------------------------------------


class Counting(BaseHTTPRequestHandler):
    requests = 0

    def do_GET(self) -> None:
        type(self).requests += 1
        self.send_response(200)
        self.send_header("content-length", "5")
        self.end_headers()
        self.wfile.write(b"hello")

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def host() -> Iterator[ThreadingHTTPServer]:
    """On an address of loopback that NO_PROXY does not name."""
    server = ThreadingHTTPServer(("127.0.0.2", 0), Counting)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(scope="module")
def open_server() -> Iterator[ServerProcess]:
    server = ServerProcess(egress_allow="127.0.0.0/8", egress_ceiling="any")
    try:
        asyncio.run(server.start())
        yield server
    finally:
        asyncio.run(server.clean())


def answered(url: str, thread: str, database: str, target: str, answer: str | None = None) -> dict[str, Any]:
    """One run: to the question, or on from it with an answer."""
    with Client(url) as client, SqliteSaver.from_conn_string(database) as saver:
        middleware = SandboxMiddleware(client, network_approval=NetworkApproval(for_s=600))
        fetch = bash(f"echo tried >> log; curl -fsS http://{target}/")
        agent = create_agent(by_conversation(fetch), middleware=[middleware], checkpointer=saver)
        given: Any = ask() if answer is None else Command(resume=json.loads(answer))
        return dict(agent.invoke(given, config(thread)))


@pytest.mark.docker
def test_approved_in_another_process_it_succeeds_once(
    open_server: ServerProcess, host: ThreadingHTTPServer, tmp_path: Path
) -> None:
    target = f"127.0.0.2:{host.server_address[1]}"
    database = str(tmp_path / "conversations.sqlite")
    before = Counting.requests
    state = answered(open_server.url, "network", database, target)
    (question,) = state["__interrupt__"]
    assert question.value["args"]["entries"] == [target]
    assert Counting.requests == before
    approved = json.dumps({"type": "approve"})
    arguments = (open_server.url, "network", database, target, approved)
    assert in_another_process("answered", *arguments, module=__name__) == "all done"
    assert Counting.requests == before + 1
    with Client(open_server.url) as client, client.thread("network") as session:
        assert session.files.read_text("log") == "tried\ntried\n"
        session.delete()
