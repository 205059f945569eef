"""A storage that sandboxes have really filled: with data, and with what the file system keeps beside data."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from sandlot import AsyncClient, AsyncSession, errors
from sandlot.domain.execution import Verdict
from sandlot.testing.eventually import eventually
from tests.faults.rig import created_at_last
from tests.workspaces.forked_server import ForkedServer
from tests.workspaces.storage import mounted_btrfs, require_btrfs

pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.timeout(300)]

SIZE = "512M"
QUOTA = "300m"
# With two of them the storage is full, and each is below its quota.
WITH_DATA = "head -c 280M /dev/zero >big"
# Attributes of files are kept with what the file system knows of the files, not with their data. A commit frees
# some of what was reserved for them, so the storage is full when they do not fit after several.
WITH_ATTRIBUTES = """head -c 100M /dev/zero >big; python3 - <<'END'
import os
for number in range(100_000):
    name = f"file{number // 1000}"
    for is_last in (False, False, False, True):
        try:
            with open(name, "w"):
                os.setxattr(name, f"user.{number}", os.urandom(15_000))
            break
        except OSError:
            if is_last:
                raise
            os.sync()
END"""
FREED_WITHIN_S = 20.0


@asynccontextmanager
async def server_on_a_small_storage() -> AsyncIterator[ForkedServer]:
    require_btrfs()
    with mounted_btrfs(SIZE) as storage:
        server = ForkedServer(
            workspace_store="btrfs", storage_dir=str(storage), workspace_quota=QUOTA, pool_size="2"
        )
        try:
            await server.start()
            yield server
        finally:
            await server.clean()


async def is_full(call: Awaitable[object]) -> None:
    """The call is refused because of it, may be repeated, and says what to do."""
    with pytest.raises(errors.SandlotError, match=r"(?i)(delete|free)") as refused:
        await call
    error = refused.value
    causes = (error.code, error.details.get("reason"), error.details.get("cause"))
    assert "storage_full" in causes, error
    assert error.retryable


async def ok(session: AsyncSession, command: str) -> str:
    result = await session.run(command, timeout=60)
    assert result.exit_code == 0, result
    return result.output


async def fill(session: AsyncSession, command: str) -> None:
    result = await session.run(command, timeout=60)
    assert result.exit_code != 0
    assert "No space left" in result.output, result
    assert result.verdict == Verdict.DISK_FULL


async def goes_on(session: AsyncSession) -> None:
    """What needs no room on the storage works, and a write fails alone."""
    assert await ok(session, "cat kept") == "kept\n"
    assert await session.files.read("kept") == b"kept\n"
    assert await ok(session, "echo 1 >/tmp/a; cat /tmp/a") == "1\n"
    # A commit may just have freed what was reserved for a write or two.
    await fill(session, "for i in $(seq 100); do head -c 1M /dev/urandom >>more || exit 1; done")
    assert (await session.run("true")).verdict == Verdict.OK


async def frees(session: AsyncSession) -> None:
    """Soon, there is room for snapshots and files again."""

    async def is_freed() -> bool:
        try:
            taken = await session.workspace.snapshot()
            await session.client.delete_snapshot(taken.id)
        except errors.StorageFull:
            return False
        return True

    await eventually(is_freed, FREED_WITHIN_S, "what was deleted is room again")
    await ok(session, "head -c 1M /dev/urandom >more; cat kept")


async def restarted(server: ForkedServer, *, killed: bool) -> None:
    """It serves, if not new sessions."""
    await (server.kill() if killed else server.terminate())
    await server.start(ready=False)

    async def serves() -> bool:
        try:
            async with server.client() as client:
                return (await client.health()).ready
        except errors.SandlotError:
            return False

    await eventually(serves, 60, lambda: server.log.read_text()[-3000:])


def is_writable(storage: Path) -> bool:
    """A btrfs that meets an error which it cannot handle turns read-only."""
    return not os.statvfs(storage).f_flag & os.ST_RDONLY


@pytest.mark.parametrize("filling", [WITH_DATA, WITH_ATTRIBUTES], ids=["data", "attributes"])
async def test_a_full_storage(filling: str) -> None:
    async with server_on_a_small_storage() as server, server.client() as client:
        keeper, first, second = [await client.create() for _ in range(3)]
        await ok(keeper, "echo kept >kept")
        snapshot = await keeper.workspace.snapshot("before")
        if filling == WITH_DATA:
            await ok(first, filling)
        await fill(second, filling)
        await refused(client, keeper, snapshot.id)
        await goes_on(keeper)

        for killed in (False, True):
            await restarted(server, killed=killed)
            await goes_on(keeper)
            await refused(client, keeper, snapshot.id)
        assert is_writable(server.storage_dir)

        await second.delete()
        await frees(keeper)
        again = await created_at_last(client, snapshot=snapshot.id)
        assert await ok(again, "cat kept") == "kept\n"
        await keeper.workspace.restore(snapshot.id)
        assert await ok(keeper, "ls") == "kept\n"
        await server.settle()


async def refused(client: AsyncClient, session: AsyncSession, snapshot: str) -> None:
    await is_full(session.workspace.snapshot())
    await is_full(session.workspace.snapshot("named"))
    await is_full(session.workspace.restore(snapshot))
    await is_full(session.fork())
    await is_full(client.create(snapshot=snapshot))
    assert (await client.health()).ready


async def test_a_deleted_snapshot_is_room_at_once() -> None:
    """Its blocks belong to it alone. The kernel by itself would take up to 30 s."""
    async with server_on_a_small_storage() as server, server.client() as client:
        session, filler = await client.create(), await client.create()
        await ok(session, "head -c 150M /dev/urandom >big; echo kept >kept")
        snapshot = await session.workspace.snapshot()
        await ok(session, "rm big")
        await fill(filler, "head -c 290M /dev/zero >big")
        await is_full(session.workspace.snapshot())
        await client.delete_snapshot(snapshot.id)
        await frees(session)
        await asyncio.gather(session.delete(), filler.delete())
        await server.settle()
