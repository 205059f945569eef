"""A server dies at any step of snapshot, restore, fork, hibernate and wake. What it left is the old state or the new.

``python -m tests.workspaces.deaths --rounds 200 --seed 1`` runs many rounds. In each, a server that dies at a random
step serves random calls until it dies. Then one that lives starts, and everything is compared.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from sandlot import AsyncClient, AsyncSession, errors
from sandlot.providers.docker.workspaces.btrfs.steps import StoreStep
from sandlot.testing.eventually import eventually
from sandlot.worker.failpoints import Step
from tests.faults.rig import ServerProcess
from tests.workspaces.storage import mounted_btrfs

DYING = [sys.executable, str(Path(__file__).parent / "dying_server.py")]
FILES = 40
# Steps that the calls below pass again and again.
STEPS: tuple[str, ...] = (
    Step.SANDBOX_RECORDED,
    Step.SANDBOX_MADE,
    Step.SESSION_RECORDED,
    Step.SESSION_BOUND,
    Step.SANDBOX_REMOVED,
    Step.SNAPSHOT_STORED,
    Step.SNAPSHOT_RECORDED,
    Step.SNAPSHOT_FORGOTTEN,
    Step.SNAPSHOT_CLONED,
    Step.WORKSPACE_ATTACHED,
    Step.HIBERNATION_RECORDED,
    Step.FILES_REPLACED,
    *(step for step in StoreStep if not step.startswith(("seed", "import"))),
)
MAX_COUNT = 3  # it dies when the step is reached for the first time, or up to this time
CALLS = 60  # in one round, after which the server is killed in any case
SNAPSHOTS_CHECKED = 3


@dataclass
class Story:
    """What may be true. ``values``: which value all files of the session may have; more than one only while a
    call has not answered. ``snapshots``: what each has.
    """

    random: random.Random
    values: set[int] = field(default_factory=lambda: {0})
    next_value: int = 1
    snapshots: dict[str, set[int]] = field(default_factory=dict)
    died_at: Counter[str] = field(default_factory=Counter)


def writing(value: int) -> str:
    """A command that gives all files a value, one after the other."""
    return f"for i in $(seq {FILES}); do echo {value} > file$i; done"


async def value_of(session: AsyncSession) -> int:
    result = await session.run("cat file* | sort | uniq -c")
    assert result.exit_code == 0, result.output
    (line,) = result.output.splitlines()
    count, value = map(int, line.split())
    assert count == FILES
    return value


class Caller:
    """Makes random calls on one session. After each that answered, the story is certain again."""

    def __init__(self, client: AsyncClient, session: AsyncSession, story: Story) -> None:
        self._client = client
        self._session = session
        self._story = story

    async def call(self) -> None:
        calls = [self.write, self.snapshot, self.restore, self.fork, self.hibernate, self.wake, self.delete]
        await self._story.random.choice(calls)()

    async def write(self) -> None:
        value, self._story.next_value = self._story.next_value, self._story.next_value + 1
        # Killed in the middle, the command goes on in the sandbox. The next start finds all of it.
        self._story.values = {*self._story.values, value}
        assert (await self._session.run(writing(value))).exit_code == 0
        self._story.values = {value}

    async def snapshot(self) -> None:
        taken = await self._session.workspace.snapshot()
        self._story.snapshots[taken.id] = set(self._story.values)

    async def restore(self) -> None:
        if (chosen := self._chosen()) is None:
            return
        before, values = self._story.values, self._story.snapshots[chosen]
        self._story.values = before | values
        await self._session.workspace.restore(chosen)
        self._story.values = set(values)

    async def fork(self) -> None:
        values = set(self._story.values)
        (fork,) = await self._session.fork()
        assert await value_of(fork) in values
        await fork.delete()

    async def hibernate(self) -> None:
        await self._session.hibernate()

    async def wake(self) -> None:
        assert await value_of(self._session) in self._story.values

    async def delete(self) -> None:
        if len(self._story.snapshots) > 4 and (chosen := self._chosen()) is not None:
            del self._story.snapshots[chosen]
            await self._client.delete_snapshot(chosen)

    def _chosen(self) -> str | None:
        known = sorted(self._story.snapshots)
        return self._story.random.choice(known) if known else None


async def run(rounds: int, seed: int, storage: Path) -> Counter[str]:
    """Returns how often it died at each step."""
    server = ServerProcess(
        workspace_store="btrfs", storage_dir=str(storage), pool_size="2", workspace_quota="64m"
    )
    story = Story(random.Random(seed))
    try:
        await server.start()
        async with server.client() as client:
            session = await client.create(thread="t", lifetime_s=7200, idle_timeout_s=7200)
            assert (await session.run(writing(0))).exit_code == 0
        await server.terminate()
        for number in range(rounds):
            await _round(server, story)
            print(f"round {number + 1}: {dict(story.died_at)}", flush=True)
    finally:
        await server.clean()
    return story.died_at


async def _round(server: ServerProcess, story: Story) -> None:
    step, count = story.random.choice(STEPS), story.random.randint(1, MAX_COUNT)
    await server.start([*DYING, step, str(count)], ready=False)
    await _until_dead(server, story)
    story.died_at[step] += 1
    await server.start()
    async with server.client() as client:
        await _check(server, client, story)
    await server.settle()
    await server.terminate()


async def _until_dead(server: ServerProcess, story: Story) -> None:
    process = server.process
    assert process is not None
    calls = 0
    while process.poll() is None:
        try:
            async with server.client() as client:
                caller = Caller(client, await client.thread("t"), story)
                while calls < CALLS:
                    calls += 1
                    await caller.call()
                os.kill(server.pid, signal.SIGKILL)
        except errors.SandlotError:
            await asyncio.sleep(0.05)
    assert await server.wait_ended() == -signal.SIGKILL, server.log.read_text()[-5000:]


async def _check(server: ServerProcess, client: AsyncClient, story: Story) -> None:
    session = await client.thread("t")
    async for other in client.sessions():
        if other.id != session.id:
            await other.delete()  # a fork whose caller never heard of it
    assert session.state in ("active", "hibernated"), session.info.loss

    async def quiet() -> bool:
        return not any(summary.running for summary in await session.execs())

    await eventually(quiet, 30, "commands that the dead server started have ended")
    value = await value_of(session)
    assert value in story.values, f"{value} is none of {story.values}"
    story.values = {value}
    listed = [snapshot.id async for snapshot in client.snapshots()]
    assert story.snapshots.keys() <= set(listed), "a snapshot is gone"
    for snapshot in listed[-SNAPSHOTS_CHECKED:]:
        fork = await client.create(snapshot=snapshot)
        found = await value_of(fork)
        # One that the dead server took without an answer has what the session had.
        assert found in story.snapshots.setdefault(snapshot, {found})
        await fork.delete()
    for snapshot in set(listed) - story.snapshots.keys():
        await client.delete_snapshot(snapshot)
    await eventually(
        lambda: not _differences(server, story), 60, lambda: f"no difference: {_differences(server, story)}"
    )


def _differences(server: ServerProcess, story: Story) -> dict[str, object]:
    """Between what the API lists, what the engine runs, what the kernel has mounted and what is stored."""
    root = server.storage_dir / server.owner
    has = {folder.name: {entry.name for entry in folder.iterdir()} for folder in root.iterdir()}
    containers = server.containers().keys()
    lines = Path("/proc/self/mounts").read_text().splitlines()
    mounted = sum(f" {root}/mounts/" in line for line in lines)
    wanted = {
        "snapshots": story.snapshots.keys(),
        "mounts": containers,
        "sandboxes": containers,
        "staging": set(),
        "trash": set(),
    }
    found = {name: (has[name], names) for name, names in wanted.items() if has[name] != names}
    if not has["spares"] <= story.snapshots.keys():
        found["spares"] = (has["spares"], story.snapshots.keys())
    return found if mounted == len(containers) else {**found, "mounted": (mounted, len(containers))}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.workspaces.deaths", description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    with mounted_btrfs() as storage:
        died = asyncio.run(run(arguments.rounds, arguments.seed, storage))
    print(f"{died.total()} deaths at {len(died)} steps: nothing lost, nothing half done, nothing left over")


if __name__ == "__main__":
    main()
