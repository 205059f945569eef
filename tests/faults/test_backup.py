"""A machine is lost, and its worker comes back from a backup: what docs/operations/backup.md promises.

The first test follows that page, block by block.
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import httpx
import pytest
import pytest_asyncio

from sandlot import AsyncClient, AsyncSession, errors
from tests.btrfs_storage import btrfs_storage, unmount
from tests.docs.operations.host import host, section
from tests.faults.invariants import told
from tests.faults.rig import ServerProcess

pytestmark = [pytest.mark.docker, pytest.mark.slow]

PAGE = "operations/backup.md"
ADMINISTRATOR = "the-administrator-of-the-backup-tests"
REPORTED_WITHIN_S = 15.0


class Machine:
    """A server with its storage, if it has one, which the tests may lose. Its log outlives it."""

    def __init__(self, folder: Path, storage: Path | None) -> None:
        self.storage = storage
        where = {} if storage is None else {"storage_dir": str(storage)}
        self.server = ServerProcess(
            api_key=ADMINISTRATOR,
            workspace_store="volume" if storage is None else "btrfs",
            pool_size="1",
            min_pool_size="1",
            **where,
        )
        self.server.log = folder / "server.log"

    async def sandlot(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        """The command line, on this machine."""
        command = [sys.executable, "-m", "sandlot", *map(str, arguments)]
        environ = {**self.server.environ, "SANDLOT_API_KEY": "", "SANDLOT_URL": ""}
        return await asyncio.to_thread(
            subprocess.run, command, capture_output=True, text=True, env=environ, timeout=120, check=False
        )

    async def new_key(self) -> str:
        body = {"name": "user", "tenant": "default"}
        headers = {"Authorization": f"Bearer {ADMINISTRATOR}"}
        async with httpx.AsyncClient(base_url=self.server.url, headers=headers) as http:
            made = (await http.post("/v1/keys", json=body)).raise_for_status()
        return str(made.json()["secret"])

    async def lose_engine(self) -> None:
        ours = ("-q", "--filter", f"label=sandlot.owner={self.server.owner}")
        while containers := self.server.docker("ps", "-a", *ours).split():
            self.server.docker("rm", "-f", "--volumes", *containers)
        for volume in self.server.docker("volume", "ls", *ours).split():
            self.server.docker("volume", "rm", "-f", volume)

    def lose_disk(self) -> None:
        if self.storage is not None:
            unmount(self.storage)
            self.storage.with_name(f"{self.storage.name}.btrfs").unlink()
        shutil.rmtree(self.server.data_dir)


Build = Callable[[Path | None], Awaitable[Machine]]


@pytest_asyncio.fixture
async def build(tmp_path: Path) -> AsyncIterator[Build]:
    machines: list[Machine] = []

    async def one(storage: Path | None) -> Machine:
        machine = Machine(tmp_path, storage)
        machines.append(machine)
        await machine.server.start()
        return machine

    yield one
    for machine in machines:
        await machine.server.clean()


async def taken(machine: Machine, folder: Path) -> None:
    """A backup, with the server stopped for as long as it takes."""
    await machine.server.terminate()
    done = await machine.sandlot("backup", "take", folder)
    assert done.returncode == 0, done.stderr
    await machine.server.start()


async def follow(machine: Machine, storage: Path, heading: str) -> str:
    """The block of this section, on this machine."""
    server = machine.server
    shell = {name: value for name, value in server.environ.items() if name.startswith("SANDLOT_")}
    async with host({**shell, "SANDLOT_URL": server.url}, sandlot=[server]) as here:
        here.names = {
            "/backup/2026-11-19": str(backup_folder(storage)),
            "storage init": f"storage init --path {storage} --fstab {here.folder}/fstab",
        }
        (block,) = section(PAGE, heading)
        return await here.run(block)


def backup_folder(storage: Path) -> Path:
    return storage.with_name("backup")


async def loss_of(session: AsyncSession) -> errors.SandboxLost:
    async with asyncio.timeout(REPORTED_WITHIN_S):
        with pytest.raises(errors.SandboxLost) as lost:
            await session.run("true")
    told(lost.value)
    return lost.value


async def same(client: AsyncClient, session: AsyncSession) -> AsyncSession:
    return await client.get(session.id)


async def test_a_machine_is_lost_with_all_its_disks(build: Build) -> None:
    with btrfs_storage() as storage:
        backup = backup_folder(storage)
        machine = await build(storage)
        server = machine.server
        async with server.client() as client:
            users_key = await machine.new_key()
            session = await client.create(thread="work", env={"WHO": "me"})
            await session.run("echo before > report.txt")
            snapshot = await session.workspace.snapshot("first")
            await session.artifacts.keep("report.txt")
            asleep = await client.create(thread="asleep")
            await asleep.run("echo asleep > dream.txt")
            await asleep.hibernate()

            refused = await machine.sandlot("backup", "take", backup)
            assert refused.returncode != 0
            assert "Stop it first" in refused.stderr
            assert not backup.exists()

            begun = await session.start("sleep 1; echo done > meanwhile.txt; sleep 600")
            await follow(machine, storage, "Take a backup")
            assert backup.is_dir()
            assert (await session.refresh()).generation == 1, "a backup ends no sandbox"
            assert (await begun.status()).result is None, "nor a command"
            assert (await session.run("cat meanwhile.txt")).output == "done\n"
            await session.run("echo after > report.txt")
            late = await client.create(thread="late")

        await server.kill()
        await machine.lose_engine()
        machine.lose_disk()
        listed = await follow(machine, storage, "Restore it")
        assert session.id in listed
        assert "lost" in listed

        async with AsyncClient(server.url, api_key=users_key, patience_s=0) as client:
            session, asleep = await same(client, session), await same(client, asleep)
            loss = (await loss_of(session)).details["loss"]
            assert loss["reason"] == "its container was gone when the worker started"
            assert "files in /workspace" in loss["kept"]
            await session.recreate()
            assert session.generation == 2
            assert (await session.run("cat report.txt; echo $WHO")).output == "before\nme\n"
            assert (await asleep.run("cat dream.txt")).output == "asleep\n"
            again = await client.create(snapshot=snapshot.id)
            assert (await again.run("cat report.txt")).output == "before\n"
            (artifact,) = [each async for each in client.artifacts.list(session=session.id)]
            assert await client.artifacts.read(artifact) == b"before\n"
            assert any([event.kind.startswith("exec") async for event in session.history()])
            with pytest.raises(errors.NotFound):
                await same(client, late)
        await server.settle()
        await server.clean()


async def test_only_the_data_folder_is_lost(build: Build, tmp_path: Path) -> None:
    """The old sandboxes still run. Their sockets are gone, so they count as lost at once, and go."""
    machine = await build(None)
    server = machine.server
    async with server.client() as client:
        session = await client.create()
        await session.run("echo kept > report.txt")
        await taken(machine, tmp_path / "backup")
        await server.kill()
        shutil.rmtree(server.data_dir)
        restored = await machine.sandlot("backup", "restore", tmp_path / "backup")
        assert restored.returncode == 0, restored.stderr
        await server.start()
        assert "files in /workspace" in (await loss_of(session)).details["loss"]["kept"]
        await session.recreate()
        assert (await session.run("cat report.txt")).output == "kept\n"
    await server.settle()


async def test_volumes_are_lost_with_the_machine(build: Build, tmp_path: Path) -> None:
    """Docker volumes are not in a backup, and nobody is told that their files are kept."""
    machine = await build(None)
    server = machine.server
    async with server.client() as client:
        session = await client.create()
        await session.run("echo lost > report.txt")
        await taken(machine, tmp_path / "backup")
        await server.kill()
        await machine.lose_engine()
        machine.lose_disk()
        assert (await machine.sandlot("backup", "restore", tmp_path / "backup")).returncode == 0
        await server.start()
        await loss_of(session)
        await session.recreate()
        assert (await session.run("ls")).output == ""
    await server.settle()
