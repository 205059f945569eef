"""A server is killed at each step of what it does with volumes. No file of a volume is lost, and no volume is
left over that nobody knows.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from sandlot import AsyncClient, errors
from sandlot.providers.docker.workspaces.btrfs.steps import StoreStep
from sandlot.testing.eventually import eventually
from sandlot.worker.failpoints import Step
from tests.faults.rig import ServerProcess

pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.timeout(300)]

DYING = [sys.executable, str(Path(__file__).parent / "dying_server.py")]
STEPS: tuple[str, ...] = tuple(step for step in (*Step, *StoreStep) if step.name.startswith("VOLUME_"))
# Steps that more than one call reaches: on the way to the first session, and back from it.
TIMES = {Step.VOLUME_ATTACHED: 3, StoreStep.VOLUME_ATTACHED: 2, StoreStep.VOLUME_BACK: 2}
CASES = [(step, number) for step in STEPS for number in range(1, TIMES.get(step, 1) + 1)]
WRITE = "echo two >/volumes/kept/a.new && sync && mv /volumes/kept/a.new /volumes/kept/a"


@pytest_asyncio.fixture
async def server(btrfs: Path) -> AsyncIterator[ServerProcess]:
    server = ServerProcess(
        workspace_store="btrfs", storage_dir=str(btrfs), pool_size="1", workspace_quota="64m"
    )
    yield server
    await server.clean()


@pytest.mark.parametrize(("step", "number"), CASES)
async def test_killed_at_a_step(server: ServerProcess, step: str, number: int) -> None:
    await server.start()
    async with server.client() as client:
        await client.volumes.create("kept", size="64m")
        async with await client.create(volumes={"kept": "rw"}) as session:
            await session.run("echo one >/volumes/kept/a", check=True)
    await server.terminate()
    await server.start([*DYING, step, str(number)], ready=False)
    await until_dead(server)
    await server.start()
    async with server.client() as client:
        await check(server, client)
    await server.terminate()


async def until_dead(server: ServerProcess) -> None:
    """Do everything with volumes, again and again, until the server dies of it."""
    process = server.process
    assert process is not None
    while process.poll() is None:
        try:
            async with server.client() as client:
                await use(client)
        except errors.SandlotError:
            await asyncio.sleep(0.05)
    assert await server.wait_ended() == -signal.SIGKILL, server.log.read_text()[-5000:]


async def use(client: AsyncClient) -> None:
    await client.volumes.delete("new")
    await client.volumes.create("new", size="64m")
    session = await client.thread("t", volumes={"kept": "rw", "new": "ro"})
    await session.run(WRITE, check=True)
    snapshot = await session.workspace.snapshot()
    await session.workspace.restore(snapshot)
    await session.hibernate()
    await session.run("true", check=True)
    await session.delete()


async def check(server: ServerProcess, client: AsyncClient) -> None:
    assert {volume.name async for volume in client.volumes.list()} <= {"kept", "new"}
    thread = [session async for session in client.sessions()]
    for session in thread:
        if session.state == "lost":
            await session.recreate()
        result = await session.run("cat /volumes/kept/a; ls /volumes")
        assert result.output in ("one\nkept\nnew\n", "two\nkept\nnew\n"), result
        await session.run(WRITE, check=True)
        await session.delete()
    async with await client.create(volumes={"kept": "rw"}) as writer:
        assert (await writer.run("cat /volumes/kept/a")).output in ("one\n", "two\n")
        async with await client.create(volumes={"kept": "ro"}) as reader:
            assert (await reader.run("ls /volumes/kept")).output == "a\n"
    volumes = server.storage_dir / server.owner / "volumes"

    async def settled() -> bool:
        """The files are those that the API lists. What was half made or half deleted is gone."""
        listed = {volume.id async for volume in client.volumes.list()}
        return {path.name for path in volumes.iterdir()} == listed

    await eventually(settled, 60, lambda: f"{[path.name for path in volumes.iterdir()]} are listed")
    # The names of those that are gone are free.
    await client.volumes.delete("new")
    await client.volumes.create("new", size="64m")
    for name in ("new", "kept"):
        await client.volumes.delete(name)
    assert list(volumes.iterdir()) == []
