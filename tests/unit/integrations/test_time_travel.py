"""Files follow LangGraph's checkpoints: on the fake, with each way to go back and on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from tests.integrations.time_travel_runs import STEPS, Agent, expected_tree, results_in

from sandlot import Client
from sandlot.testing.fake import FakeService


@pytest.fixture
def fake() -> FakeService:
    return FakeService()


@pytest.fixture
def client(fake: FakeService) -> Iterator[Client]:
    with Client(service=fake) as client:
        yield client


@pytest.fixture(params=["memory", "sqlite"])
def saver(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[BaseCheckpointSaver[Any]]:
    if request.param == "memory":
        yield InMemorySaver()
        return
    with SqliteSaver.from_conn_string(str(tmp_path / "conversations.sqlite")) as saver:
        yield saver


@pytest.fixture
def agent(client: Client, saver: BaseCheckpointSaver[Any]) -> Agent:
    return Agent(client, saver, "thread")


def test_every_checkpoint_has_its_files(agent: Agent, client: Client) -> None:
    agent.run()
    assert len(set(agent.trees.values())) == STEPS
    assert client.thread("thread").generation == 1, "going on needs no new sandbox"
    checkpoints = [each for each in agent.checkpoints() if each.next in (("model",), ("tools",))]
    assert len(checkpoints) == 2 * STEPS + 1
    empty = expected_tree(client)
    for checkpoint in checkpoints[::-1] + checkpoints[::12]:
        seen = agent.look(checkpoint)
        done = results_in(checkpoint) + (checkpoint.next == ("tools",))
        assert seen == agent.trees.get(done, empty), (checkpoint.next, done)


def test_branches_never_share_files(agent: Agent, client: Client) -> None:
    agent.run()
    agent.fork("second", 10)
    second = agent.tree
    agent.fork("third", 20)
    third = agent.tree
    assert second == expected_tree(client, *["main"] * 10, *["second"] * 20)
    assert third == expected_tree(client, *["main"] * 20, *["third"] * 10)
    ends = agent.ends()
    for branch, tree in {"main": agent.trees[STEPS], "second": second, "third": third}.items():
        assert agent.look(ends[branch]) == tree
    assert len({agent.trees[STEPS], second, third}) == 3
