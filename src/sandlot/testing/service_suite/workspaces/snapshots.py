"""Snapshots: a workspace at one moment, which is listed, compared, restored, forked and deleted."""

from __future__ import annotations

import asyncio
import secrets

import pytest

from sandlot.client.async_client import AsyncClient
from sandlot.client.async_session import AsyncSession
from sandlot.domain.errors import (
    InvalidRequest,
    LinkInterrupted,
    NotFound,
    SandboxLost,
    SessionEnded,
)
from sandlot.domain.session import SessionState
from sandlot.testing.service_suite.commands.background import EventReader
from sandlot.testing.service_suite.harness import (
    NEEDS_SNAPSHOTS,
    Cases,
    ServiceHarness,
    check_three_fields,
    ok,
    unique,
)
from sandlot.testing.service_suite.loss import REPORTED_WITHIN, lose
from sandlot.testing.service_suite.workspaces.trees import plant, shown


def unknown_snapshot(like: str = "") -> str:
    """The id of a snapshot that does not exist, on the same worker as ``like``."""
    tag = like[4:12] or secrets.token_hex(4)
    return f"snp_{tag}{secrets.token_hex(12)}"


class SnapshotCases(Cases):
    @NEEDS_SNAPSHOTS
    async def test_taken_and_listed(self, fresh: AsyncSession, client: AsyncClient) -> None:
        first = await fresh.workspace.snapshot("first", labels={"color": "red"})
        second = await fresh.workspace.snapshot()
        info = fresh.info
        assert (first.session_id, first.environment, first.thread) == (fresh.id, info.environment, None)
        assert (first.name, first.labels, first.tenant) == ("first", {"color": "red"}, info.tenant)
        assert (second.name, second.labels) == ("", {})
        assert info.created_at <= first.created_at < second.created_at
        listed = [found async for found in fresh.workspace.snapshots()]
        assert [found.id for found in listed] == [first.id, second.id]
        assert (listed[0].name, listed[0].labels) == ("first", {"color": "red"})
        assert {first.id, second.id} <= {found.id async for found in client.snapshots()}
        assert (await fresh.workspace.status()).snapshots == 2

    @NEEDS_SNAPSHOTS
    async def test_pages_of_snapshots(self, service_harness: ServiceHarness, fresh: AsyncSession) -> None:
        service = service_harness.service
        if service is None:
            pytest.skip("the sync client shows no pages")
        taken = [(await fresh.workspace.snapshot(str(number))).id for number in range(5)]
        found, after = [], None
        for size in (2, 2, 1):
            page = await service.list_snapshots(session_id=fresh.id, after=after, limit=2)
            assert len(page.snapshots) == size
            found += [snapshot.id for snapshot in page.snapshots]
            after = page.next
        assert after is None
        assert found == taken
        for refused in (
            service.list_snapshots(after="nonsense"),
            service.list_snapshots(limit=0),
            service.list_snapshots(limit=10_000_000),
        ):
            with pytest.raises(InvalidRequest):
                await refused

    @NEEDS_SNAPSHOTS
    async def test_restore_gives_the_files_back(self, fresh: AsyncSession) -> None:
        planted = await plant(fresh)
        snapshot = await fresh.workspace.snapshot()
        await ok(fresh, "rm -r folder; echo changed >program; echo new >new; echo gone >/tmp/gone")
        before = fresh.info
        restored = await fresh.workspace.restore(snapshot)
        assert (restored.replaced, restored.snapshot) == (True, snapshot.id)
        assert restored.session.generation == before.generation + 1
        assert restored.session.sandbox_id != before.sandbox_id
        assert fresh.info == restored.session
        assert fresh.info.state is SessionState.ACTIVE
        assert await shown(fresh) == planted
        difference = await fresh.workspace.diff(snapshot)
        assert (difference.added, difference.changed, difference.removed) == ((), (), ())
        assert not await fresh.files.exists("/tmp/gone")
        assert (await fresh.run("true")).generation == fresh.generation
        workspace = fresh.info.workspace
        assert workspace is not None
        assert workspace.snapshot == snapshot.id

    @NEEDS_SNAPSHOTS
    async def test_restore_says_what_was_lost(self, fresh: AsyncSession) -> None:
        snapshot = await fresh.workspace.snapshot()
        shell = fresh.shell("main")
        await shell.run("cd /tmp")
        restored = await fresh.workspace.restore(snapshot)
        assert {"running commands", "shells", "files in /tmp"} <= set(restored.lost)
        assert any(snapshot.id in thing for thing in restored.lost)
        assert "environment variables" in restored.kept
        loss = (await fresh.refresh()).info.loss
        assert loss is not None
        assert (loss.lost, loss.kept) == (restored.lost, restored.kept)
        assert snapshot.id in loss.reason
        assert list(await fresh.shells()) == []

    @NEEDS_SNAPSHOTS
    async def test_restore_ends_every_command(self, fresh: AsyncSession) -> None:
        snapshot = await fresh.workspace.snapshot()
        running = await fresh.start("echo begun; sleep 60; echo late >late")
        reader = EventReader(running.events())
        await reader.read_until(b"begun")
        await fresh.workspace.restore(snapshot)
        with pytest.raises((SandboxLost, LinkInterrupted, NotFound)) as caught:
            await asyncio.wait_for(reader.read_to_end(), REPORTED_WITHIN)
        assert caught.value.may_have_executed or isinstance(caught.value, NotFound)
        with pytest.raises((NotFound, SandboxLost)):
            await running.status()
        assert list(await fresh.execs()) == []

    @NEEDS_SNAPSHOTS
    async def test_restore_keeps_variables_and_metadata(self, client: AsyncClient) -> None:
        async with await client.create(env={"KEPT": "yes"}, metadata={"m": "1"}) as session:
            snapshot = await session.workspace.snapshot()
            await session.workspace.restore(snapshot)
            assert await ok(session, "echo $KEPT") == "yes\n"
            assert session.info.metadata == {"m": "1"}

    @NEEDS_SNAPSHOTS
    async def test_restore_again_and_again(self, fresh: AsyncSession) -> None:
        taken = []
        for number in range(3):
            await fresh.files.write("number", str(number))
            taken.append(await fresh.workspace.snapshot())
        for number in (0, 2, 1, 1):
            await fresh.workspace.restore(taken[number])
            assert await fresh.files.read_text("number") == str(number)
            await fresh.files.write("number", "changed")
        # What happens to the copies never reaches the snapshots.
        await fresh.workspace.restore(taken[1].id)
        assert await fresh.files.read_text("number") == "1"

    @NEEDS_SNAPSHOTS
    async def test_snapshots_have_parents(self, fresh: AsyncSession, client: AsyncClient) -> None:
        first = await fresh.workspace.snapshot()
        await fresh.workspace.restore(first)
        assert (await fresh.workspace.snapshot()).parent == first.id
        async with await client.create(snapshot=first) as other:
            assert (await other.workspace.snapshot()).parent == first.id

    @NEEDS_SNAPSHOTS
    async def test_what_a_finished_command_wrote_is_in_it(self, fresh: AsyncSession) -> None:
        await ok(fresh, "seq 1 20000 >numbers")
        expected = await fresh.files.read("numbers")
        snapshot = await fresh.workspace.snapshot()
        await ok(fresh, "rm numbers")
        await fresh.workspace.restore(snapshot)
        assert await fresh.files.read("numbers") == expected

    @NEEDS_SNAPSHOTS
    async def test_compared_with_now(self, fresh: AsyncSession) -> None:
        await plant(fresh)
        snapshot = await fresh.workspace.snapshot()
        unchanged = await fresh.workspace.diff(snapshot)
        assert (unchanged.added, unchanged.changed, unchanged.removed) == ((), (), ())
        await ok(
            fresh, "echo more >>program; rm empty/none; rm dangling; mkdir 'a new'; echo 1 >'a new/file'"
        )
        await fresh.files.write("folder/deep/file", b"x", mode=0o600)
        difference = await fresh.workspace.diff(snapshot)
        assert difference.added == ("a new", "a new/file")
        assert difference.changed == ("folder/deep/file", "program")
        assert difference.removed == ("dangling", "empty/none")
        assert not difference.truncated

    @NEEDS_SNAPSHOTS
    async def test_compared_with_another(self, fresh: AsyncSession) -> None:
        await ok(fresh, "echo 1 >one; echo 2 >both; ln -s one link; echo 1 >file")
        first = await fresh.workspace.snapshot()
        await ok(fresh, "rm one link; echo 3 >two; echo changed >both; ln -s two link; rm file; mkdir file")
        second = await fresh.workspace.snapshot()
        await ok(fresh, "echo later >later")
        difference = await fresh.workspace.diff(first, to=second)
        assert (difference.added, difference.removed) == (("two",), ("one",))
        assert difference.changed == ("both", "file", "link")
        backwards = await fresh.workspace.diff(second.id, first.id)
        assert (backwards.added, backwards.removed) == (("one",), ("two",))

    @NEEDS_SNAPSHOTS
    async def test_of_a_lost_session(self, service_harness: ServiceHarness, fresh: AsyncSession) -> None:
        await fresh.files.write("kept", b"1")
        first = await fresh.workspace.snapshot()
        await fresh.files.write("kept", b"2")
        await lose(service_harness, fresh)
        second = await fresh.workspace.snapshot()
        await fresh.workspace.restore(first)
        assert (fresh.generation, fresh.state) == (2, SessionState.ACTIVE)
        assert await fresh.files.read("kept") == b"1"
        await fresh.workspace.restore(second)
        assert await fresh.files.read("kept") == b"2"

    @NEEDS_SNAPSHOTS
    async def test_snapshots_outlive_their_session(self, client: AsyncClient) -> None:
        session = await client.create()
        await session.files.write("kept", b"kept")
        snapshot = await session.workspace.snapshot("of a session that has ended")
        await session.delete()
        assert [found.id async for found in client.snapshots(session.id)] == [snapshot.id]
        async with await client.create(snapshot=snapshot.id) as other:
            assert await other.files.read("kept") == b"kept"
        with pytest.raises((SessionEnded, NotFound)):
            await session.workspace.diff(snapshot)
        await client.delete_snapshot(snapshot)
        assert [found.id async for found in client.snapshots(session.id)] == []

    @NEEDS_SNAPSHOTS
    async def test_deleted_for_good(self, fresh: AsyncSession, client: AsyncClient) -> None:
        snapshot, other = await fresh.workspace.snapshot(), await fresh.workspace.snapshot()
        async with await client.create(snapshot=snapshot) as copy:
            await fresh.workspace.restore(snapshot)
            await fresh.workspace.delete_snapshot(snapshot)
            await client.delete_snapshot(snapshot.id)
            for call in (
                fresh.workspace.restore(snapshot),
                fresh.workspace.diff(snapshot),
                fresh.workspace.diff(other, to=snapshot),
                client.create(snapshot=snapshot),
                client.thread(unique(), snapshot=snapshot),
            ):
                with pytest.raises(NotFound) as caught:
                    await call
                check_three_fields(caught.value)
                assert snapshot.id in caught.value.message
            # Sessions that began from it go on.
            assert await ok(fresh, "echo here") == "here\n"
            assert await ok(copy, "echo here") == "here\n"
            await copy.workspace.snapshot()
        assert [found.id async for found in fresh.workspace.snapshots()] == [other.id]
