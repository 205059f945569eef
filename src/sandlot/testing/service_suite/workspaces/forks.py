"""Sessions that begin with the files of another one, and share nothing with it from then on."""

from __future__ import annotations

import asyncio

from sandlot.client.async_client import AsyncClient
from sandlot.client.async_session import AsyncSession
from sandlot.testing.service_suite.harness import (
    NEEDS_SNAPSHOTS,
    Cases,
    deleted_afterwards,
    ok,
    unique,
)
from sandlot.testing.service_suite.workspaces.trees import plant, shown


class ForkCases(Cases):
    @NEEDS_SNAPSHOTS
    async def test_create_from_a_snapshot(self, fresh: AsyncSession, client: AsyncClient) -> None:
        planted = await plant(fresh)
        snapshot = await fresh.workspace.snapshot()
        await ok(fresh, "echo later >program")
        async with await client.create(snapshot=snapshot, metadata={"m": "1"}) as copy:
            assert copy.generation == 1
            assert copy.info.loss is None
            assert copy.info.workspace is not None
            assert copy.info.workspace.snapshot == snapshot.id
            assert await shown(copy) == planted
            same = await copy.workspace.diff(snapshot, to=await copy.workspace.snapshot())
            assert (same.added, same.changed, same.removed) == ((), (), ())
            await ok(copy, "echo mine >mine")
        assert not await fresh.files.exists("mine")

    @NEEDS_SNAPSHOTS
    async def test_thread_from_a_snapshot(self, fresh: AsyncSession, client: AsyncClient) -> None:
        await fresh.files.write("kept", b"1")
        snapshot, thread = await fresh.workspace.snapshot(), unique()
        async with deleted_afterwards(client.thread(thread, snapshot=snapshot)) as session:
            assert await session.files.read("kept") == b"1"
            await session.files.write("kept", b"2")
            # A thread that has its session keeps that one's files.
            again = await client.thread(thread, snapshot=snapshot)
            assert (again.id, await again.files.read("kept")) == (session.id, b"2")

    @NEEDS_SNAPSHOTS
    async def test_forks_share_nothing(self, fresh: AsyncSession) -> None:
        await fresh.files.write("number", b"0")
        forks = await fresh.fork(3)
        try:
            assert len({fork.id for fork in forks} | {fresh.id}) == 4
            for number, fork in enumerate(forks, start=1):
                assert await fork.files.read("number") == b"0"
                await fork.files.write("number", str(number))
            assert [await fork.files.read_text("number") for fork in forks] == ["1", "2", "3"]
            assert await fresh.files.read_text("number") == "0"
            promoted = await fresh.promote(forks[1])
            assert promoted.session.id == fresh.id
            assert await fresh.files.read_text("number") == "2"
            assert await forks[1].files.read_text("number") == "2"
        finally:
            for fork in forks:
                await fork.delete()

    @NEEDS_SNAPSHOTS
    async def test_many_sessions_from_one_snapshot_at_once(
        self, fresh: AsyncSession, client: AsyncClient
    ) -> None:
        await fresh.files.write("kept", b"kept")
        snapshot = await fresh.workspace.snapshot()
        copies = await asyncio.gather(*(client.create(snapshot=snapshot) for _ in range(4)))
        try:
            for copy in copies:
                assert await copy.files.read("kept") == b"kept"
        finally:
            await asyncio.gather(*(copy.delete() for copy in copies))

    @NEEDS_SNAPSHOTS
    async def test_files_of_another_session(self, fresh: AsyncSession, client: AsyncClient) -> None:
        await fresh.files.write("kept", b"of another")
        snapshot = await fresh.workspace.snapshot()
        async with await client.create() as other:
            await other.workspace.restore(snapshot)
            assert await other.files.read("kept") == b"of another"
            assert [found.id async for found in other.workspace.snapshots()] == []
