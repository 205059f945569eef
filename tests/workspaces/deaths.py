"""A server dies at any step of snapshot, restore, fork, hibernate, wake, save and load. What it left is the old state
or the new.

``python -m tests.workspaces.deaths --rounds 200 --seed 1`` runs many rounds. Each begins with a start after a death.
Everything is compared, and the server serves random calls until it dies at a random step. In some rounds it may die
before it is ready, and the next one compares.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import shutil
import signal
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from sandlot import AsyncClient, errors
from sandlot.domain.callers.principal import OWNER
from sandlot.domain.workspaces.objects.locations import parse_location
from sandlot.domain.workspaces.snapshots import AUTOMATIC_LABEL
from sandlot.providers.docker.workspaces.btrfs.steps import StoreStep
from sandlot.testing.eventually import eventually
from sandlot.worker.failpoints import Step
from sandlot.worker.workspaces.objects.options import ObjectOptions
from sandlot.worker.workspaces.objects.storage import ObjectStorage
from tests.workspaces.death_story import Caller, Story, value_in, value_of, writing
from tests.workspaces.forked_server import ForkedServer
from tests.workspaces.storage import mounted_btrfs

# Steps that the calls pass again and again, and at a start after a death.
STEPS: tuple[str, ...] = (
    Step.SANDBOX_RECORDED,
    Step.SANDBOX_MADE,
    Step.SESSION_RECORDED,
    Step.SESSION_BOUND,
    Step.ADOPTED,
    Step.SANDBOX_REMOVED,
    Step.SNAPSHOT_STORED,
    Step.SNAPSHOT_RECORDED,
    Step.SNAPSHOT_FORGOTTEN,
    Step.SNAPSHOT_CLONED,
    Step.WORKSPACE_ATTACHED,
    Step.HIBERNATION_RECORDED,
    Step.FILES_REPLACED,
    Step.EXPORT_PUBLISHED,
    Step.EXPORT_RECORDED,
    Step.SNAPSHOT_FETCHED,
    *(step for step in StoreStep if not step.startswith(("seed", "volume"))),
)
# In the other rounds it is killed after some call, or in the middle of one.
AT_A_STEP = 0.85
DURING_START = 0.25
AT_START_ALONE = {Step.ADOPTED}
MAX_COUNT = 3  # it dies when the step is reached for the first time, or up to this time
CALLS = 30  # in one round, after which the server is killed in any case
# Rounds after which it has died at every step. A round may end before its step is reached as often as it says.
ROUNDS_FOR_ALL = 5 * len(STEPS)
SNAPSHOTS_CHECKED = 3
KILLED_WITHIN_S = 5.0
DIES_WITHIN_S = 10.0
SAVED_WITHIN_S = 60.0
KILLED = "killed at some moment"


async def run(rounds: int, seed: int, storage: Path) -> Story:
    story = Story(random.Random(seed))
    folder = Path(tempfile.mkdtemp(prefix="sandlot-test-"))
    server = ForkedServer(
        workspace_store="btrfs",
        storage_dir=str(storage),
        objects_url=f"file://{folder}",
        pool_size="2",
        workspace_quota="64m",
    )
    try:
        await server.start()
        async with server.client() as client:
            session = await client.create(thread="t", lifetime_s=7200, idle_timeout_s=7200)
            assert (await session.run(writing(0))).exit_code == 0
        await server.terminate()
        async with _opened(folder) as objects:
            for number in range(rounds):
                began = time.monotonic()
                step = await _round(server, objects, story)
                print(f"round {number + 1}: {step} ({time.monotonic() - began:.1f} s)", flush=True)
            await server.start()
            await _check(server, objects, story)
        await server.terminate()
    finally:
        await server.clean()
        shutil.rmtree(folder)
    return story


@asynccontextmanager
async def _opened(folder: Path) -> AsyncIterator[ObjectStorage]:
    objects = ObjectStorage(ObjectOptions(parse_location(f"file://{folder}")))
    await objects.open()
    try:
        yield objects
    finally:
        await objects.close()


async def _round(server: ForkedServer, objects: ObjectStorage, story: Story) -> str:
    """Returns where the server died."""
    chance = story.random.random
    step = _next_step(story) if chance() < AT_A_STEP else KILLED
    command = None if step == KILLED else [step, str(story.random.randint(1, MAX_COUNT))]
    if chance() < DURING_START or step in AT_START_ALONE:
        await server.start(command, ready=False)
        server.arm()
    else:
        await server.start(command)
        await _check(server, objects, story)
        server.arm()
    killed_after = story.random.uniform(0, KILLED_WITHIN_S) if command is None else None
    died_at = step if await _until_dead(server, objects, story, killed_after) else KILLED
    story.died_at[died_at] += 1
    return died_at


def _next_step(story: Story) -> str:
    """Each step once, in any order, and then again."""
    if not story.steps_left:
        story.steps_left = story.random.sample(STEPS, len(STEPS))
    return story.steps_left.pop()


async def _until_dead(
    server: ForkedServer, objects: ObjectStorage, story: Story, killed_after: float | None
) -> bool:
    """Make calls until it dies. Returns whether it did so by itself; otherwise it is killed."""
    calling = asyncio.create_task(_calls(server, objects, story))
    await asyncio.wait([calling], timeout=killed_after)
    assert server.process is not None
    by_itself = server.process.poll() is not None
    if not by_itself:
        os.kill(server.pid, signal.SIGKILL)
    await calling
    assert await server.wait_ended() == -signal.SIGKILL, server.log.read_text()[-5000:]
    return by_itself


async def _calls(server: ForkedServer, objects: ObjectStorage, story: Story) -> None:
    process = server.process
    assert process is not None

    async def is_dead() -> bool:
        return process.poll() is not None

    left = CALLS
    while left > 0 and not await is_dead():
        try:
            async with server.client() as client:
                caller = Caller(client, await client.thread("t"), objects, story)
                while left > 0:
                    left -= 1
                    await caller.call()
        except errors.SandlotError as error:
            if not error.retryable:
                await eventually(is_dead, DIES_WITHIN_S, f"the server dies after {error!r}")
            await asyncio.sleep(0.05)


async def _check(server: ForkedServer, objects: ObjectStorage, story: Story) -> None:
    async with server.client() as client:
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
        automatic = await _check_snapshots(client, story)
    await _check_saved(objects, story, automatic)
    await eventually(
        lambda: not _differences(server, story, automatic),
        60,
        lambda: f"no difference: {_differences(server, story, automatic)}",
    )
    await server.settle()


async def _check_snapshots(client: AsyncClient, story: Story) -> set[str]:
    """Returns those that the server took by itself, of which only the newest stays."""
    listed = {snapshot.id: snapshot async for snapshot in client.snapshots()}
    gone = story.snapshots.keys() - listed.keys() - story.elsewhere
    assert not gone, f"{gone} are gone"
    story.elsewhere -= listed.keys()
    automatic = {snapshot.id for snapshot in listed.values() if AUTOMATIC_LABEL in snapshot.labels}
    ours = sorted((listed.keys() | story.elsewhere) - automatic)
    for snapshot in story.random.sample(ours, min(len(ours), SNAPSHOTS_CHECKED)):
        fork = await client.create(snapshot=snapshot)
        found = await value_of(fork)
        # One that the dead server took without an answer has what the session had.
        assert found in story.snapshots.setdefault(snapshot, {found})
        if snapshot in listed and listed[snapshot].name:
            story.named.add(snapshot)
        await fork.delete()
        story.elsewhere.discard(snapshot)
    for snapshot in listed.keys() - story.snapshots.keys() - automatic:
        await client.delete_snapshot(snapshot)
    return automatic


async def _check_saved(objects: ObjectStorage, story: Story, automatic: set[str]) -> None:
    """What has a name is in object storage as well, whole; what is deleted is not."""

    async def saved() -> set[str]:
        return {snapshot for _, snapshot in await objects.list(OWNER.tenant)} - automatic

    async def same() -> bool:
        return await saved() == story.named

    await eventually(same, SAVED_WITHIN_S, "object storage has what has a name, and nothing else")
    if story.named:
        chosen = story.random.choice(sorted(story.named))
        folder = Path(tempfile.mkdtemp(prefix="sandlot-test-"))
        try:
            await objects.load(OWNER.tenant, chosen, folder)
            assert value_in(folder) in story.snapshots[chosen]
        finally:
            shutil.rmtree(folder)


def _differences(server: ForkedServer, story: Story, automatic: set[str]) -> dict[str, object]:
    """Between what the API lists, what the engine runs, what the kernel has mounted and what is stored."""
    root = server.storage_dir / server.owner
    has = {folder.name: {entry.name for entry in folder.iterdir()} for folder in root.iterdir()}
    has["snapshots"] -= automatic
    containers = server.containers().keys()
    lines = Path("/proc/self/mounts").read_text().splitlines()
    mounted = sum(f" {root}/mounts/" in line for line in lines)
    wanted = {
        "snapshots": story.snapshots.keys() - story.elsewhere,
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
    began = time.monotonic()
    with mounted_btrfs() as storage:
        story = asyncio.run(run(arguments.rounds, arguments.seed, storage))
    assert arguments.rounds < ROUNDS_FOR_ALL or not (missed := set(STEPS) - story.died_at.keys()), missed
    for what, counts in (("died at", story.died_at), ("calls", story.calls)):
        print(f"{what}: {', '.join(f'{name} {count}' for name, count in counts.most_common())}")
    print(
        f"{story.died_at.total()} deaths at {len(story.died_at)} steps after {story.calls.total()} calls in "
        f"{time.monotonic() - began:.0f} s: nothing lost, nothing half done, nothing left over"
    )


if __name__ == "__main__":
    main()
