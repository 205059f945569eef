"""Volumes that sessions share: one writes, others read, and the files outlive all of them."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from sandlot.client.async_client import AsyncClient
from sandlot.domain.errors import Conflict, FileProblem, NotFound, ThreadDiffers
from sandlot.domain.session import KEPT_FILES, SessionState
from sandlot.domain.volumes.volume import SessionVolume, Volume, VolumeMode
from sandlot.testing.service_suite.harness import (
    NEEDS_VOLUMES,
    Cases,
    ServiceHarness,
    deleted_afterwards,
    ok,
    unique,
)
from sandlot.testing.service_suite.loss import lose

MIB = 1024**2


@contextlib.asynccontextmanager
async def a_volume(client: AsyncClient, size: int | str | None = "64m") -> AsyncIterator[Volume]:
    """A new volume, which is deleted at the end."""
    volume = await client.volumes.create(unique("data"), size=size)
    try:
        yield volume
    finally:
        await client.volumes.delete(volume)


class VolumeCases(Cases):
    @pytest_asyncio.fixture(loop_scope="session")
    async def volume(self, service_harness: ServiceHarness) -> AsyncIterator[Volume]:
        async with a_volume(service_harness.client) as volume:
            yield volume

    @NEEDS_VOLUMES
    async def test_a_volume_comes_and_goes(self, client: AsyncClient) -> None:
        name = unique("data")
        volume = await client.volumes.create(name, size="64m")
        assert (volume.name, volume.quota_bytes, volume.writer) == (name, 64 * MIB, None)
        assert (await client.volumes.get(name)).id == volume.id
        assert (await client.volumes.get(volume.id)).name == name
        assert volume.id in [each.id async for each in client.volumes.list()]
        with pytest.raises(Conflict):
            await client.volumes.create(name)
        await client.volumes.delete(name)
        await client.volumes.delete(name)
        await client.volumes.delete(volume)
        with pytest.raises(NotFound):
            await client.volumes.get(name)
        assert volume.id not in [each.id async for each in client.volumes.list()]
        again = await client.volumes.create(name)
        assert again.id != volume.id
        await client.volumes.delete(again)

    @NEEDS_VOLUMES
    async def test_pages_of_volumes(self, client: AsyncClient, service_harness: ServiceHarness) -> None:
        service = service_harness.service
        if service is None:
            pytest.skip("this client's service lives on an event loop of its own")
        async with contextlib.AsyncExitStack() as stack:
            made = [(await stack.enter_async_context(a_volume(client))).id for _ in range(3)]
            found: list[str] = []
            after: str | None = None
            for _ in range(20):
                page = await service.list_volumes(after=after, limit=1)
                found += [each.id for each in page.volumes]
                after = page.next
                if after is None:
                    break
            assert [each for each in found if each in made] == made

    @NEEDS_VOLUMES
    async def test_one_writes_and_others_read(self, client: AsyncClient, volume: Volume) -> None:
        async with await client.create(volumes={volume.name: "rw"}) as writer:
            await ok(writer, f"echo one >/volumes/{volume.name}/a")
            async with await client.create(volumes={volume.name: "ro"}) as reader:
                assert writer.info.volumes == (SessionVolume(volume.id, volume.name, VolumeMode.RW),)
                assert reader.info.volumes == (SessionVolume(volume.id, volume.name, VolumeMode.RO),)
                await ok(writer, f"echo two >/volumes/{volume.name}/a")
                assert await ok(reader, f"cat /volumes/{volume.name}/a") == "one\n"
                assert not (await reader.run(f"echo x >/volumes/{volume.name}/a")).ok
                assert not (await reader.run(f"echo x >/volumes/{volume.name}/b")).ok
                async with await client.create(volumes={volume.id: "ro"}) as later:
                    assert await ok(later, f"cat /volumes/{volume.name}/a") == "two\n"
            assert (await client.volumes.get(volume)).writer == writer.id
        # It outlives them all.
        assert (await client.volumes.get(volume)).writer is None
        async with await client.create(volumes={volume.name: VolumeMode.RW}) as again:
            assert await ok(again, f"cat /volumes/{volume.name}/a") == "two\n"
            assert await again.files.read(f"/volumes/{volume.name}/a") == b"two\n"

    @NEEDS_VOLUMES
    async def test_a_second_writer_is_refused(self, client: AsyncClient, volume: Volume) -> None:
        async with await client.create(volumes={volume.name: "rw"}) as writer:
            with pytest.raises(Conflict) as caught:
                await client.create(volumes={volume.name: "rw"})
            assert writer.id in caught.value.message
            assert caught.value.details["session_id"] == writer.id
            await ok(writer, f"echo a >/volumes/{volume.name}/a")
        async with await client.create(volumes={volume.name: "rw"}) as second:
            assert await ok(second, f"cat /volumes/{volume.name}/a") == "a\n"

    @NEEDS_VOLUMES
    async def test_several_volumes(self, client: AsyncClient) -> None:
        async with (
            a_volume(client) as one,
            a_volume(client) as other,
            await client.create(volumes={one.name: "rw", other.name: "rw"}) as session,
        ):
            await ok(session, f"echo 1 >/volumes/{one.name}/a; echo 2 >/volumes/{other.name}/a")
            shown = await ok(session, f"cat /volumes/{one.name}/a /volumes/{other.name}/a")
            assert shown == "1\n2\n"

    @NEEDS_VOLUMES
    async def test_a_lost_sandbox_leaves_it(
        self, client: AsyncClient, volume: Volume, service_harness: ServiceHarness
    ) -> None:
        async with await client.create(volumes={volume.name: "rw"}) as session:
            await ok(session, f"echo kept >/volumes/{volume.name}/a")
            await lose(service_harness, session)
            assert session.info.loss is not None
            assert f"volume {volume.name}" in session.info.loss.kept
            await session.recreate()
            assert await ok(session, f"cat /volumes/{volume.name}/a") == "kept\n"
            await ok(session, f"echo more >>/volumes/{volume.name}/a")
            assert [each.name for each in session.info.volumes] == [volume.name]

    @NEEDS_VOLUMES
    async def test_another_writer_while_a_sandbox_is_lost(
        self, client: AsyncClient, volume: Volume, service_harness: ServiceHarness
    ) -> None:
        async with await client.create(volumes={volume.name: "rw"}) as session:
            await ok(session, f"echo one >/volumes/{volume.name}/a")
            await lose(service_harness, session)
            async with await client.create(volumes={volume.name: "rw"}) as other:
                assert await ok(other, f"cat /volumes/{volume.name}/a") == "one\n"
                with pytest.raises(Conflict) as caught:
                    await session.recreate()
                assert caught.value.details["session_id"] == other.id
                assert (await session.refresh()).state is SessionState.LOST
                await ok(other, f"echo two >/volumes/{volume.name}/a")
            await session.recreate()
            assert await ok(session, f"cat /volumes/{volume.name}/a") == "two\n"

    @NEEDS_VOLUMES
    async def test_hibernation_frees_it(self, client: AsyncClient, volume: Volume) -> None:
        async with await client.create(volumes={volume.name: "rw"}) as session:
            await session.files.write("own", b"own")
            await ok(session, f"echo one >/volumes/{volume.name}/a")
            await session.hibernate()
            assert session.info.loss is not None
            assert f"volume {volume.name}" in session.info.loss.kept
            async with await client.create(volumes={volume.name: "rw"}) as other:
                await ok(other, f"echo two >/volumes/{volume.name}/a")
                with pytest.raises(Conflict) as caught:
                    await session.run("true")
                assert caught.value.details["session_id"] == other.id
                assert (await session.refresh()).state is SessionState.HIBERNATED
            assert await ok(session, f"cat /volumes/{volume.name}/a") == "two\n"
            assert await session.files.read("own") == b"own"

    @NEEDS_VOLUMES
    async def test_a_reader_that_wakes_sees_what_is_there_then(self, client: AsyncClient) -> None:
        async with (
            a_volume(client) as volume,
            await client.create(volumes={volume.name: "rw"}) as writer,
            await client.create(volumes={volume.name: "ro"}) as reader,
        ):
            await ok(writer, f"echo new >/volumes/{volume.name}/a")
            assert not await reader.files.exists(f"/volumes/{volume.name}/a")
            await reader.hibernate()
            assert await ok(reader, f"cat /volumes/{volume.name}/a") == "new\n"

    @NEEDS_VOLUMES
    async def test_a_restore_leaves_it_as_it_is(self, client: AsyncClient, volume: Volume) -> None:
        async with await client.create(volumes={volume.name: "rw"}) as session:
            await ok(session, f"echo one >a; echo one >/volumes/{volume.name}/a")
            snapshot = await session.workspace.snapshot()
            await ok(session, f"echo two >a; echo two >/volumes/{volume.name}/a")
            restored = await session.workspace.restore(snapshot)
            assert f"volume {volume.name}" in restored.kept
            assert KEPT_FILES not in restored.kept
            assert await ok(session, f"cat a /volumes/{volume.name}/a") == "one\ntwo\n"
            await ok(session, f"echo three >/volumes/{volume.name}/a")
            assert (await client.volumes.get(volume)).writer == session.id

    @NEEDS_VOLUMES
    async def test_forks_only_read(self, client: AsyncClient, volume: Volume) -> None:
        async with await client.create(volumes={volume.name: "rw"}) as session:
            await ok(session, f"echo one >/volumes/{volume.name}/a")
            async with (await session.fork())[0] as fork:
                assert fork.info.volumes == (SessionVolume(volume.id, volume.name, VolumeMode.RO),)
                await ok(session, f"echo two >/volumes/{volume.name}/a")
                assert await ok(fork, f"cat /volumes/{volume.name}/a") == "one\n"
            async with (await session.fork(volumes={}))[0] as without:
                assert without.info.volumes == ()
                assert not await without.files.exists(f"/volumes/{volume.name}")

    @NEEDS_VOLUMES
    async def test_a_volume_in_use_stays(self, client: AsyncClient, volume: Volume) -> None:
        """Also in the use of a session that only reads, or that hibernates: it will need it again."""
        for mode in VolumeMode:
            async with await client.create(volumes={volume.name: mode}) as session:
                for _ in range(2):
                    with pytest.raises(Conflict) as caught:
                        await client.volumes.delete(volume)
                    assert caught.value.details["session_ids"] == [session.id]
                    await session.hibernate()

    @NEEDS_VOLUMES
    async def test_a_thread_keeps_its_volumes(self, client: AsyncClient, volume: Volume) -> None:
        thread = unique()
        async with deleted_afterwards(client.thread(thread, volumes={volume.name: "rw"})) as session:
            for volumes in ({volume.name: "rw"}, {volume.id: "rw"}, {}):
                again = await client.thread(thread, volumes=volumes)  # type: ignore[arg-type]
                assert again.id == session.id
            with pytest.raises(ThreadDiffers) as caught:
                await client.thread(thread, volumes={volume.name: "ro"})
            assert caught.value.details["different"] == ["volumes"]
            kept = await client.thread(thread, volumes={volume.name: "ro"}, if_different="keep")
            assert kept.info.volumes == session.info.volumes
            await session.hibernate()
            result = await client.run_in_thread(thread, f"echo a >/volumes/{volume.name}/a")
            assert result.ok

    @NEEDS_VOLUMES
    async def test_its_size_is_its_own(self, client: AsyncClient) -> None:
        async with (
            a_volume(client, 16 * MIB) as volume,
            await client.create(volumes={volume.name: "rw"}) as session,
        ):
            with pytest.raises(FileProblem) as caught:
                await session.files.write(f"/volumes/{volume.name}/big", bytes(24 * MIB))
            assert caught.value.reason == "no_space"
            await session.files.write("big", bytes(24 * MIB))
            await session.files.write(f"/volumes/{volume.name}/small", b"small")
