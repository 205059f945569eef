"""Sessions that share volumes on a real worker: on both tiers, and at the bounds of a tenant."""

from __future__ import annotations

import asyncio
import secrets
import shutil
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from sandlot import AsyncClient, errors
from sandlot.testing.eventually import eventually
from sandlot.wiring import local_service
from tests.service.workers import engine_call

pytestmark = [pytest.mark.docker, pytest.mark.timeout(300)]

MIB = 1024**2


@pytest_asyncio.fixture
async def client(btrfs: Path) -> AsyncIterator[AsyncClient]:
    data_dir = Path(tempfile.mkdtemp(prefix="sandlot-test-"))
    service = await local_service(
        worker_id=f"test-volumes-{secrets.token_hex(4)}",
        data_dir=data_dir,
        workspace_store="btrfs",
        storage_dir=btrfs,
        volumes_per_tenant=3,
        volume_bytes_per_tenant=256 * MIB,
        volume_quota=64 * MIB,
        pool_size=1,
        min_pool_size=0,
        overcommit_memory=100,
        overcommit_cpus=1000,
    )
    try:
        async with AsyncClient(service=service) as client:
            yield client
            async for session in client.sessions():
                await session.delete()
            async for volume in client.volumes.list():
                await client.volumes.delete(volume)
    finally:
        await service.close()
        shutil.rmtree(data_dir, ignore_errors=True)


@pytest.mark.parametrize(("writes", "reads"), [("gvisor", "gvisor"), ("base", "gvisor"), ("gvisor", "base")])
async def test_sessions_of_both_tiers_share(client: AsyncClient, writes: str, reads: str) -> None:
    await client.volumes.create("data")
    writer = await client.create(writes, volumes={"data": "rw"})
    await writer.run("echo one >/volumes/data/a; mkdir /volumes/data/d", check=True)
    reader = await client.create(reads, volumes={"data": "ro"})
    assert (await reader.run("cat /volumes/data/a; ls /volumes/data")).output == "one\na\nd\n"
    assert not (await reader.run("echo x >/volumes/data/a")).ok
    await writer.run("echo two >/volumes/data/a", check=True)
    assert (await reader.run("cat /volumes/data/a")).output == "one\n"
    with pytest.raises(errors.Conflict):
        await client.create(reads, volumes={"data": "rw"})
    # Killed from outside, as by an operator's mistake.
    await engine_call(client.service, "rm", writer.id, "--force")

    async def lost() -> bool:
        return (await writer.refresh()).state == "lost"

    await eventually(lost, 30, "the loss is known")
    await writer.recreate()
    assert (await writer.run("cat /volumes/data/a; rmdir /volumes/data/d")).output == "two\n"
    await writer.hibernate()
    other = await client.create(reads, volumes={"data": "rw"})
    assert (await other.run("echo three >>/volumes/data/a; cat /volumes/data/a")).output == "two\nthree\n"
    await other.delete()
    assert (await writer.run("cat /volumes/data/a")).output == "two\nthree\n"


async def test_a_full_volume_fails_its_own_commands(client: AsyncClient) -> None:
    await client.volumes.create("data", size=16 * MIB)
    session = await client.create(volumes={"data": "rw"})
    full = await session.run("head -c 24000000 /dev/urandom >/volumes/data/big && sync /volumes/data/big")
    assert full.verdict == "disk_full", full
    assert (await session.run("head -c 24000000 /dev/urandom >big && sync big")).ok


async def test_a_tenant_has_so_many_volumes_and_no_more(client: AsyncClient) -> None:
    """However many are asked for at once."""
    made = await asyncio.gather(
        *(client.volumes.create(f"data-{number}", size="64m") for number in range(8)), return_exceptions=True
    )
    assert sum(not isinstance(each, BaseException) for each in made) == 3
    assert all(isinstance(each, errors.Busy) for each in made if isinstance(each, BaseException))
    volumes = [volume async for volume in client.volumes.list()]
    await client.volumes.delete(volumes[0])
    # 128 MiB are taken, of 256.
    with pytest.raises(errors.Busy, match="268435456"):
        await client.volumes.create("large", size="129m")
    assert (await client.volumes.create("default")).quota_bytes == 64 * MIB
    await client.volumes.delete("default")
    await client.volumes.create("large", size="128m")


async def test_one_of_many_gets_it(client: AsyncClient) -> None:
    await client.volumes.create("data")
    made = await asyncio.gather(
        *(client.create(volumes={"data": "rw"}) for _ in range(4)), return_exceptions=True
    )
    writers = [each for each in made if not isinstance(each, BaseException)]
    assert len(writers) == 1
    assert all(isinstance(each, errors.Conflict) for each in made if isinstance(each, BaseException))
    deletes = await asyncio.gather(
        client.volumes.delete("data"), client.create(volumes={"data": "ro"}), return_exceptions=True
    )
    assert isinstance(deletes[0], errors.Conflict)
