"""Snapshots in object storage, between real servers on btrfs: each has a machine's disk of its own."""

from __future__ import annotations

import contextlib
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from sandlot import AsyncClient, AsyncSession, errors
from sandlot.domain.callers.principal import OWNER
from sandlot.domain.workspaces.objects.locations import parse_location
from sandlot.testing.eventually import eventually
from sandlot.testing.workspace_suite.harness import DESCRIBE, MAKE_FILES
from sandlot.worker.failpoints import Step
from sandlot.worker.workspaces.objects.options import ObjectOptions
from sandlot.worker.workspaces.objects.storage import ObjectStorage
from tests.faults.rig import ServerProcess
from tests.s3_server import ACCESS_KEY, BUCKET, REGION, SECRET, s3_server
from tests.workspaces.storage import mounted_btrfs, require_btrfs

pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.timeout(600)]

DYING = [sys.executable, str(Path(__file__).parent / "dying_server.py")]
KEY = bytes(range(32))
WITHIN_S = 60.0


@pytest.fixture
def folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="sandlot-test-"))
    yield path
    shutil.rmtree(path)


@contextlib.contextmanager
def machine(folder: Path, **settings: str) -> Iterator[ServerProcess]:
    """A server that saves its snapshots in ``folder``, or where the settings say. Nothing else of it stays."""
    require_btrfs()
    key = folder / "key"
    key.touch(mode=0o600)
    key.write_text(KEY.hex())
    with mounted_btrfs() as storage:
        settings = {"objects_url": f"file://{folder}/objects", **settings}
        yield ServerProcess(
            workspace_store="btrfs", storage_dir=str(storage), objects_key_file=str(key), **settings
        )


@asynccontextmanager
async def started(server: ServerProcess) -> AsyncIterator[AsyncClient]:
    try:
        await server.start()
        async with server.client() as client:
            yield client
    finally:
        await server.clean()


@asynccontextmanager
async def opened(options: ObjectOptions) -> AsyncIterator[ObjectStorage]:
    storage = ObjectStorage(options)
    await storage.open()
    yield storage
    await storage.close()


@pytest.fixture
async def saved(folder: Path) -> AsyncIterator[ObjectStorage]:
    async with opened(ObjectOptions(parse_location(f"file://{folder}/objects"), key=KEY)) as storage:
        yield storage


async def until_saved(saved: ObjectStorage, session: AsyncSession, snapshot: str) -> None:
    async def is_saved() -> bool:
        return snapshot in [mark.snapshot for mark in await saved.marks(OWNER.tenant, session.id)]

    await eventually(is_saved, WITHIN_S)


async def ok(session: AsyncSession, command: str) -> str:
    result = await session.run(command, timeout=60)
    assert result.exit_code == 0, result
    return result.output


async def test_files_come_back_over_s3(folder: Path) -> None:
    credentials = folder / "credentials"
    credentials.touch(mode=0o600)
    credentials.write_text(f"{ACCESS_KEY}\n{SECRET}\n")
    with s3_server(folder / "s3") as server:
        settings = {
            "objects_url": f"s3://{BUCKET}/sandlot",
            "objects_endpoint": server.endpoint,
            "objects_region": REGION,
            "objects_credentials_file": str(credentials),
        }
        there = ObjectOptions(
            parse_location(settings["objects_url"]),
            endpoint=server.endpoint,
            region=REGION,
            access_key_id=ACCESS_KEY,
            secret_access_key=SECRET,
            key=KEY,
        )
        with machine(folder, **settings) as first:
            async with started(first) as client, opened(there) as saved:
                session = await client.create()
                await ok(session, MAKE_FILES)
                before = await ok(session, DESCRIBE)
                snapshot = await session.workspace.snapshot("first")
                await until_saved(saved, session, snapshot.id)
        assert [path.name for path in server.files.iterdir()] == ["sandlot"]
        with machine(folder, **settings) as second:
            async with started(second) as client:
                again = await client.create(snapshot=snapshot.id)
                assert await ok(again, DESCRIBE) == before


@pytest.mark.parametrize("tier", ["base", "gvisor"])
async def test_files_come_back_on_another_machine(folder: Path, saved: ObjectStorage, tier: str) -> None:
    with machine(folder) as first:
        async with started(first) as client:
            session = await client.create(tier)
            await ok(session, MAKE_FILES)
            before = await ok(session, DESCRIBE)
            await session.hibernate()
            assert await ok(session, DESCRIBE) == before
            snapshot = await session.workspace.snapshot("first")
            await until_saved(saved, session, snapshot.id)
            await session.delete()
    with machine(folder) as second:
        async with started(second) as client:
            again = await client.create(tier, snapshot=snapshot.id)
            assert await ok(again, DESCRIBE) == before
            await ok(again, "echo more >>one; chmod 700 shut; cat deep/hard")
            # From now on it is here.
            fork = await client.create("base", snapshot=snapshot.id)
            assert await ok(fork, DESCRIBE) == before
            await client.delete_snapshot(snapshot.id)
            with pytest.raises(errors.NotFound):
                await client.create(tier, snapshot=snapshot.id)

            async def is_deleted() -> bool:
                return not await saved.list(OWNER.tenant)

            await eventually(is_deleted, WITHIN_S)
            for one in (again, fork):
                await one.delete()
            await second.settle()


@pytest.mark.parametrize("step", [Step.EXPORT_PUBLISHED, Step.EXPORT_RECORDED])
async def test_dies_while_it_saves(folder: Path, saved: ObjectStorage, step: Step) -> None:
    with machine(folder, on_idle="end") as server:
        async with started(server) as client:
            await server.terminate()
            await server.start([*DYING, step.value, "1"])
            session = await client.create()
            await ok(session, "echo 1 >a")
            snapshot = await session.workspace.snapshot("first")
            await server.wait_ended()
            await server.start()
            await until_saved(saved, session, snapshot.id)
            assert [found async for found in client.snapshots()] == [snapshot]
            await client.delete_snapshot(snapshot.id)
            await session.delete()
            await server.settle()


async def test_dies_while_it_loads(folder: Path, saved: ObjectStorage) -> None:
    with machine(folder) as first:
        async with started(first) as client:
            session = await client.create()
            await ok(session, "echo 1 >a")
            snapshot = await session.workspace.snapshot("first")
            await until_saved(saved, session, snapshot.id)
    with machine(folder) as second:
        async with started(second) as client:
            await second.terminate()
            await second.start([*DYING, Step.SNAPSHOT_FETCHED.value, "1"])
            with pytest.raises(errors.SandlotError):
                await client.create(snapshot=snapshot.id)
            await second.wait_ended()
            await second.start()
            again = await client.create(snapshot=snapshot.id)
            assert await ok(again, "cat a") == "1\n"
            await again.delete()
            stored = second.storage_dir / second.owner / "snapshots"
            assert {path.name for path in stored.iterdir()} == {snapshot.id}
            await second.settle()


async def test_only_changes_are_sent(folder: Path, saved: ObjectStorage) -> None:
    with machine(folder) as server:
        async with started(server) as client:
            session = await client.create()
            await ok(session, "for i in $(seq 40); do head -c 1M /dev/urandom >file$i; done")
            first = await session.workspace.snapshot("first")
            await until_saved(saved, session, first.id)
            await ok(session, "head -c 1M /dev/urandom >file7")
            second = await session.workspace.snapshot("second")
            await until_saved(saved, session, second.id)
            assert (await saved.describe(OWNER.tenant, first.id)).bytes_sent > 40_000_000
            described = await saved.describe(OWNER.tenant, second.id)
            assert described.bytes_sent < 5_000_000
            assert described.bytes_total == 40 * 1024 * 1024
            await session.delete()
