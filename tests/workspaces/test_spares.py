"""Copies that are made ahead: they are taken once, are like any other copy, and go with their snapshot."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from sandlot.domain.errors import NotFound
from sandlot.domain.ids import new_snapshot_id, new_workspace_id
from sandlot.providers.docker.workspaces.btrfs import quotas, sizes, steps, subvolumes
from sandlot.providers.docker.workspaces.btrfs.seeds import spares
from sandlot.providers.docker.workspaces.btrfs.steps import StoreStep
from sandlot.providers.docker.workspaces.btrfs.store import BtrfsStore

OWNER = "test-spares"
TAG = "0" * 8  # of this worker
QUOTA = 64 * 1024 * 1024
CONTENT = os.urandom(1024 * 1024)


@pytest_asyncio.fixture
async def opened(btrfs: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[BtrfsStore]:
    monkeypatch.setattr(spares, "MAKE_AFTER_S", 0.0)
    monkeypatch.setattr(steps, "hook", None)
    opened = BtrfsStore(btrfs, OWNER, QUOTA)
    await opened.open()
    yield opened
    steps.hook = None
    stored = await opened.list()
    for stored_id in stored.workspaces | stored.snapshots:
        await opened.delete(stored_id)
    await opened.close()
    for name in ("spares", "staging", "trash"):
        assert os.listdir(btrfs / OWNER / name) == []


@pytest_asyncio.fixture
async def snapshot(opened: BtrfsStore) -> str:
    return await new_snapshot(opened)


async def new_snapshot(opened: BtrfsStore) -> str:
    snapshot_id = new_snapshot_id(TAG)
    async with opened.new_snapshot(snapshot_id) as folder:
        (folder / "file").write_bytes(CONTENT)
    return snapshot_id


async def clone(opened: BtrfsStore, snapshot_id: str) -> Path:
    workspace_id = new_workspace_id()
    await opened.clone(snapshot_id, workspace_id)
    path = opened.snapshot_folder(snapshot_id).parent.parent / "workspaces" / workspace_id
    # Without a note of when it was read, which would be a change.
    descriptor = os.open(path / "file", os.O_RDONLY | os.O_NOATIME)
    with os.fdopen(descriptor, "rb") as file:
        assert file.read() == CONTENT
    return path


def folder_of_spares(btrfs: Path) -> list[str]:
    return os.listdir(btrfs / OWNER / "spares")


def subvolume_of(path: Path) -> int:
    with subvolumes.opened(path) as descriptor:
        return subvolumes.info(descriptor).id


async def test_the_next_copy_is_the_spare(btrfs: Path, opened: BtrfsStore, snapshot: str) -> None:
    first = await clone(opened, snapshot)
    await opened.spares.finish()
    assert folder_of_spares(btrfs) == [snapshot]
    spare = subvolume_of(btrfs / OWNER / "spares" / snapshot)
    second = await clone(opened, snapshot)
    assert subvolume_of(second) == spare
    await opened.spares.finish()
    assert subvolume_of(btrfs / OWNER / "spares" / snapshot) != spare, "there is one for the next, too"
    (second / "file").write_bytes(b"changed")
    assert (first / "file").read_bytes() == CONTENT
    await clone(opened, snapshot)


async def test_it_is_like_another_copy(opened: BtrfsStore, snapshot: str) -> None:
    first = await clone(opened, snapshot)
    await opened.spares.finish()
    second = await clone(opened, snapshot)
    charges = []
    for path in (first, second):
        with subvolumes.opened(path) as descriptor:
            charges.append(quotas.charge(descriptor, subvolumes.info(descriptor).id))
        assert not await opened.changed(path.name, snapshot)
        (path / "more").write_text("more")
        assert await opened.changed(path.name, snapshot)
    assert charges[0].limit is not None
    assert charges[0] == charges[1]


async def test_nobody_finds_it(opened: BtrfsStore, snapshot: str) -> None:
    workspace = await clone(opened, snapshot)
    await opened.spares.finish()
    stored = await opened.list()
    assert (stored.workspaces, stored.snapshots) == ({workspace.name}, {snapshot})


async def test_many_copies_at_once(opened: BtrfsStore, snapshot: str) -> None:
    await clone(opened, snapshot)
    await opened.spares.finish()
    copies = await asyncio.gather(*(clone(opened, snapshot) for _ in range(8)))
    assert len({subvolume_of(copy) for copy in copies}) == 8


async def test_it_goes_with_its_snapshot(btrfs: Path, opened: BtrfsStore, snapshot: str) -> None:
    await clone(opened, snapshot)
    await opened.spares.finish()
    await opened.delete(snapshot)
    assert folder_of_spares(btrfs) == []
    with pytest.raises(NotFound):
        await opened.clone(snapshot, new_workspace_id())


@pytest.mark.parametrize("step", [StoreStep.SPARE_COPIED, StoreStep.SPARE_MADE])
async def test_a_snapshot_that_goes_meanwhile(
    btrfs: Path, opened: BtrfsStore, snapshot: str, step: StoreStep
) -> None:
    """Deleted at a step of making the spare."""
    loop = asyncio.get_running_loop()
    reached = []

    def delete(now: StoreStep) -> None:
        if now is step:
            reached.append(now)
            steps.hook = None
            asyncio.run_coroutine_threadsafe(opened.delete(snapshot), loop).result(30)

    steps.hook = delete
    await clone(opened, snapshot)
    await opened.spares.finish()
    assert reached == [step]
    assert folder_of_spares(btrfs) == []


async def test_a_cancelled_copy(opened: BtrfsStore, snapshot: str) -> None:
    """Its caller does not know it, and the sweep would delete it. The next one gets a spare or a copy."""
    await clone(opened, snapshot)
    await opened.spares.finish()
    cancelled = asyncio.create_task(opened.clone(snapshot, new_workspace_id()))
    await asyncio.sleep(0)
    cancelled.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await cancelled
    await clone(opened, snapshot)


async def test_only_the_last_ones_stay(
    btrfs: Path, opened: BtrfsStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spares, "MAX_SPARES", 2)
    snapshots = [await new_snapshot(opened) for _ in range(3)]
    for snapshot_id in snapshots:
        await clone(opened, snapshot_id)
        await opened.spares.finish()
    assert set(folder_of_spares(btrfs)) == set(snapshots[1:])


async def test_none_without_room(
    btrfs: Path, opened: BtrfsStore, snapshot: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await clone(opened, snapshot)
    monkeypatch.setattr(sizes, "RESERVED_BYTES", 1 << 60)
    await opened.spares.finish()
    assert folder_of_spares(btrfs) == []


async def test_a_start_deletes_them(btrfs: Path, opened: BtrfsStore, snapshot: str) -> None:
    await clone(opened, snapshot)
    await opened.spares.finish()
    assert folder_of_spares(btrfs) == [snapshot]
    await opened.close()
    await opened.open()
    assert folder_of_spares(btrfs) == []
    await clone(opened, snapshot)
