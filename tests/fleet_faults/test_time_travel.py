"""Files follow LangGraph's checkpoints in a fleet whose workers are on btrfs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from langgraph.checkpoint.sqlite import SqliteSaver

from sandlot import Client
from tests.btrfs_storage import btrfs_storage
from tests.fleet_faults.rig import Fleet, running
from tests.integrations.time_travel_runs import Agent, expected_tree, results_in

pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.timeout(600)]

STEPS = 10
FORKED_AT = (3, 7)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def on_btrfs() -> AsyncIterator[Fleet]:
    with btrfs_storage() as storage:
        fleet = Fleet(workers=2, coordinators=2, workspace_store="btrfs", storage_dir=str(storage))
        async with running(fleet):
            yield fleet


@pytest.mark.parametrize("straight", [True, False], ids=["straight", "proxied"])
@pytest.mark.asyncio(loop_scope="module")
async def test_every_checkpoint_has_its_files(on_btrfs: Fleet, straight: bool, tmp_path: Path) -> None:
    """Of the first line and of two branches, which begin through another coordinator."""
    await asyncio.to_thread(_branches, on_btrfs, straight, tmp_path)


def _branches(fleet: Fleet, straight: bool, folder: Path) -> None:
    thread = f"travels-{straight}"
    where = str(folder / "conversations.sqlite")
    clients = [Client(_wrapped=fleet.client(number, straight=straight)) for number in range(2)]
    try:
        with SqliteSaver.from_conn_string(where) as saver:
            agent = Agent(clients[0], saver, thread)
            agent.run(until=STEPS)
            assert len(set(agent.trees.values())) == STEPS
            agent.trees[0] = expected_tree(clients[1])
            checkpoints = [each for each in agent.checkpoints() if each.next in (("model",), ("tools",))]
            trees = {"main": agent.trees[STEPS]}
            for branch, after in zip(("second", "third"), FORKED_AT, strict=True):
                agent.client = clients[1]
                agent.fork(branch, after, until=STEPS)
                trees[branch] = agent.tree
                wanted = [*["main"] * after, *[branch] * (STEPS - after)]
                assert trees[branch] == expected_tree(agent.client, *wanted)
            ends = agent.ends()
            for branch in ("main", "third", "second"):
                agent.client = clients[branch == "third"]
                assert agent.look(ends[branch]) == trees[branch]
            for checkpoint in checkpoints[::3]:
                done = results_in(checkpoint) + (checkpoint.next == ("tools",))
                assert agent.look(checkpoint) == agent.trees[done], (checkpoint.next, done)
            clients[0].thread(thread).delete()
    finally:
        for client in clients:
            client.close()
