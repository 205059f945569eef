"""A worker on a storage file: it chooses btrfs, keeps to it, and moves over from volumes without losing one."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from sandlot.domain.environment import Environment, Tier
from sandlot.domain.errors import Conflict, EngineProblem, Unavailable, Unsupported
from sandlot.domain.execution import ExecRequest, ExecResult, Verdict
from sandlot.domain.ids import first_workspace_of, new_sandbox_id, new_snapshot_id, new_workspace_id
from sandlot.domain.workspaces.workspace import StoreKind
from sandlot.providers.base import Sandbox, SandboxSpec
from sandlot.providers.docker.engine import Engine
from sandlot.providers.docker.provider import DockerProvider
from sandlot.providers.docker.workspaces.choosing import Asked, choose_store
from sandlot.providers.docker.workspaces.storage import loop_file
from tests.docker.conftest import SLIM
from tests.docker.storage.conftest import SMALL, Place

pytestmark = [pytest.mark.docker, pytest.mark.asyncio(loop_scope="session")]

MIB = 1024**2
QUOTA = 48 * MIB


@dataclass
class Worker:
    """One machine's worker, with one data folder, started again and again."""

    place: Place
    owner: str
    data_dir: Path

    @asynccontextmanager
    async def started(self, asked: Asked = "auto") -> AsyncIterator[DockerProvider]:
        engine = Engine()
        try:
            store = await choose_store(
                asked,
                self.place.storage.folder,
                engine=engine,
                owner=self.owner,
                quota_bytes=QUOTA,
                data_dir=self.data_dir,
            )
        except BaseException:
            await engine.close()
            raise
        provider = DockerProvider(
            owner=self.owner, data_dir=self.data_dir / "docker", engine=engine, workspaces=store
        )
        try:
            await provider.open()
            yield provider
        finally:
            await provider.close()

    async def set_up_storage(self) -> None:
        await asyncio.to_thread(loop_file.set_up, self.place.storage, SMALL, say=lambda _: None)


@pytest_asyncio.fixture(loop_scope="session")
async def worker(place: Place, short_tmp: Path) -> AsyncIterator[Worker]:
    worker = Worker(place, f"test-{secrets.token_hex(4)}", short_tmp / "data")
    try:
        yield worker
    finally:
        async with worker.started("volume") as provider:
            for found in await provider.list():
                await provider.destroy(found.id)
        if place.storage.file.exists():
            await worker.set_up_storage()
            async with worker.started() as provider:
                for workspace_id in (await provider.workspaces.list()).workspaces:
                    await provider.workspaces.delete(workspace_id)


async def create(provider: DockerProvider, tier: Tier = Tier.RUNC) -> Sandbox:
    environment = Environment(name="test", image=SLIM, tier=tier)
    return await provider.create(SandboxSpec(id=new_sandbox_id(), environment=environment))


async def run(sandbox: Sandbox, command: str) -> ExecResult:
    return await sandbox.run(ExecRequest(command=command, timeout_s=60))


@pytest.mark.parametrize("tier", [Tier.RUNC, Tier.RUNSC])
async def test_only_the_command_that_exceeds_the_quota_has_the_verdict(worker: Worker, tier: Tier) -> None:
    await worker.set_up_storage()
    async with worker.started() as provider:
        assert provider.workspaces.abilities.kind is StoreKind.BTRFS
        sandbox, neighbour = await create(provider, tier), await create(provider, tier)
        assert (await run(sandbox, "false")).verdict is Verdict.NONZERO
        full = await run(sandbox, "head -c 200000000 /dev/zero >/workspace/fill")
        assert full.verdict is Verdict.DISK_FULL, full
        assert (await run(sandbox, "false")).verdict is Verdict.NONZERO
        assert (await run(sandbox, "ls /nowhere")).verdict is Verdict.NONZERO
        assert (await run(sandbox, "true")).verdict is Verdict.OK
        # The host and the neighbours have room.
        assert (await run(neighbour, "head -c 1000000 /dev/zero >/workspace/some")).verdict is Verdict.OK
        (worker.place.storage.folder / "the host's").write_text("fits")
        (worker.place.storage.folder / "the host's").unlink()
        assert (await run(sandbox, "rm /workspace/fill && echo room >/workspace/again")).verdict is Verdict.OK
        for one in (sandbox, neighbour):
            await provider.destroy(one.id)


async def test_a_worker_moves_from_volumes_to_btrfs_and_loses_nothing(worker: Worker) -> None:
    async with worker.started() as provider:
        assert provider.workspaces.abilities.kind is StoreKind.VOLUME
        assert "is not on btrfs" in provider.workspaces.abilities.note
        old = await create(provider)
        await old.files.write("old", b"in a volume")
    await worker.set_up_storage()
    in_volume = first_workspace_of(old.id)
    async with worker.started() as provider:
        store = provider.workspaces
        assert store.abilities.kind is StoreKind.BTRFS
        adopted = await provider.adopt(old.id)
        assert await adopted.files.read_bytes("old") == b"in a volume"
        new = await create(provider)
        assert (await store.list()).workspaces == {in_volume, first_workspace_of(new.id)}
        snapshot = new_snapshot_id("0" * 8)
        with pytest.raises(Unsupported, match="Only newer sessions can have snapshots"):
            await store.snapshot(in_volume, snapshot)
        with pytest.raises(Conflict, match="SANDLOT_WORKSPACE_STORE=volume"):
            await store.attach(new.id, in_volume)
        await store.snapshot(first_workspace_of(new.id), snapshot)
        copied = new_workspace_id()
        await store.clone(snapshot, copied)
        with pytest.raises(Unavailable):  # a sandbox with a volume cannot get it
            await store.attach(old.id, copied)
        await provider.destroy(new.id)
        # A lost container of an old session: its files stay until somebody deletes them.
        await provider.destroy(old.id, keep={in_volume})
        assert in_volume in (await store.list()).workspaces
        await store.delete(in_volume)
        assert (await store.list()).workspaces == {copied}
        await store.delete(copied)
        await store.delete(snapshot)


async def test_a_worker_that_used_btrfs_does_not_start_without_it(worker: Worker) -> None:
    await worker.set_up_storage()
    async with worker.started() as provider:
        sandbox = await create(provider)
        await provider.destroy(sandbox.id, keep={first_workspace_of(sandbox.id)})
        kept = (await provider.workspaces.list()).workspaces
    worker.place.unmount_all()
    with pytest.raises(EngineProblem, match=r"is not mounted at .* Run `sudo mount "):
        async with worker.started():
            pass
    async with worker.started("volume") as provider:
        assert provider.workspaces.abilities.kind is StoreKind.VOLUME
    await worker.set_up_storage()
    async with worker.started("btrfs") as provider:
        assert (await provider.workspaces.list()).workspaces == kept
        for workspace_id in kept:
            await provider.workspaces.delete(workspace_id)
