"""Files follow LangGraph's checkpoints: on a real server with btrfs, with SQLite and PostgreSQL."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.sqlite import SqliteSaver

from sandlot import Client
from tests.btrfs_storage import btrfs_storage
from tests.faults.rig import ServerProcess
from tests.integrations.langchain_runs import config, in_another_process
from tests.integrations.time_travel_runs import STEPS, Agent, expected_tree, results_in
from tests.postgres_server import postgres

pytestmark = [pytest.mark.docker, pytest.mark.slow]


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with btrfs_storage() as folder:
        settings = {"storage_dir": str(folder), "workspace_store": "btrfs"}
        server = ServerProcess(pool_size="3", max_pool_size="3", **settings)
        try:
            asyncio.run(server.start())
            yield server
        finally:
            asyncio.run(server.clean())


@pytest.fixture(scope="module")
def database() -> Iterator[str]:
    with postgres() as address:
        with PostgresSaver.from_conn_string(address) as saver:
            saver.setup()
        yield address


@pytest.mark.parametrize(("environment", "steps"), [("base", STEPS), ("gvisor", 8)])
def test_every_checkpoint_has_its_files(
    server: ServerProcess, tmp_path: Path, environment: str, steps: int
) -> None:
    where = str(tmp_path / "conversations.sqlite")
    with Client(server.url) as client, SqliteSaver.from_conn_string(where) as saver:
        agent = Agent(client, saver, f"every-{environment}", environment)
        agent.run(until=steps)
        assert len(set(agent.trees.values())) == steps
        session = client.thread(agent.thread)
        assert session.environment == environment
        assert session.generation == 1, "going on needs no new sandbox"
        assert session.workspace.status().snapshots == steps + 1
        checkpoints = [each for each in agent.checkpoints() if each.next in (("model",), ("tools",))]
        assert len(checkpoints) == 2 * steps + 1
        agent.trees[0] = expected_tree(client)
        for checkpoint in checkpoints[::-1] + checkpoints[::12]:
            done = results_in(checkpoint) + (checkpoint.next == ("tools",))
            assert agent.look(checkpoint) == agent.trees[done], (checkpoint.next, done)


def run_steps(url: str, thread: str, database: str, until: str) -> dict[str, Any]:
    """One run of the agent, up to so many steps of the conversation."""
    with Client(url) as client, PostgresSaver.from_conn_string(database) as saver:
        agent = Agent(client, saver, thread)
        for _ in agent.stepping("main", until=int(until)):
            pass
        return dict(agent.graph().get_state(config(thread)).values)


def test_three_branches_in_two_processes_across_restarts(server: ServerProcess, database: str) -> None:
    where = (server.url, "branches", database)
    run_steps(*where, "12")
    asyncio.run(server.terminate())
    asyncio.run(server.start())
    assert in_another_process("run_steps", *where, str(STEPS), module=__name__) == "all done"

    with Client(server.url) as client, PostgresSaver.from_conn_string(database) as saver:
        agent = Agent(client, saver, "branches")
        trees = {"main": agent.tree}
        agent.fork("second", 10)
        trees["second"] = agent.tree
        asyncio.run(server.kill())
        asyncio.run(server.start())
        agent.fork("third", 20)
        trees["third"] = agent.tree
        assert trees == {
            "main": expected_tree(client, *["main"] * STEPS),
            "second": expected_tree(client, *["main"] * 10, *["second"] * 20),
            "third": expected_tree(client, *["main"] * 20, *["third"] * 10),
        }
        assert len(set(trees.values())) == 3
        ends = agent.ends()
        for branch in ("second", "main", "third", "second"):
            assert agent.look(ends[branch]) == trees[branch]


def test_a_copied_thread_has_files_of_its_own(server: ServerProcess, tmp_path: Path) -> None:
    """Its checkpoints are copied in the store, as tools for LangGraph do. Then both threads go on."""
    where = str(tmp_path / "conversations.sqlite")
    with Client(server.url) as client, SqliteSaver.from_conn_string(where) as saver:
        original, copy = Agent(client, saver, "original"), Agent(client, saver, "copy")
        for _ in original.stepping("main", until=5):
            pass
        for each in list(saver.list(config("original")))[::-1]:
            there = {"configurable": {"thread_id": "copy", "checkpoint_ns": ""}}
            if each.parent_config is not None:
                there["configurable"]["checkpoint_id"] = each.parent_config["configurable"]["checkpoint_id"]
            saver.put(there, each.checkpoint, each.metadata, each.checkpoint["channel_versions"])  # type: ignore[arg-type]
        for agent, branch in ((copy, "copied"), (original, "on"), (copy, "again")):
            for _ in agent.stepping(branch, until=10 if branch == "again" else 8):
                pass
        assert client.thread("copy").id != client.thread("original").id
        assert {original.tree, copy.tree} == {
            expected_tree(client, *["main"] * 5, *["on"] * 3),
            expected_tree(client, *["main"] * 5, *["copied"] * 3, *["again"] * 2),
        }
