"""The files that an attached workspace replaced: deleted soon, at the latest when the store closes."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
import structlog

from sandlot.domain.errors import EngineProblem
from sandlot.domain.ids import new_sandbox_id, new_snapshot_id, new_workspace_id
from sandlot.providers.docker.workspaces.btrfs import old_files, removing, sizes
from sandlot.providers.docker.workspaces.btrfs.store import BtrfsStore
from sandlot.testing.eventually import eventually
from tests.workspaces.dying_store import IMAGE, UID

OWNER = "test-old-files"
TAG = "0" * 8


@pytest_asyncio.fixture
async def store(btrfs: Path) -> AsyncIterator[BtrfsStore]:
    store = BtrfsStore(btrfs, OWNER)
    await store.open()
    yield store
    await store.open()
    stored = await store.list()
    for stored_id in stored.snapshots:
        await store.delete(stored_id)
    for sandbox_id in os.listdir(btrfs / OWNER / "sandboxes"):
        await store.release(sandbox_id)
    await store.close()


@pytest.fixture
def trash(btrfs: Path) -> Path:
    return btrfs / OWNER / "trash"


@pytest_asyncio.fixture
async def snapshot(store: BtrfsStore) -> str:
    snapshot_id = new_snapshot_id(TAG)
    async with store.new_snapshot(snapshot_id) as folder:
        (folder / "file").write_text("content")
    return snapshot_id


def immutable(path: Path, change: str) -> None:
    subprocess.run(["chattr", change, str(path)], check=True, capture_output=True)


async def replace_files(store: BtrfsStore, snapshot: str) -> None:
    """Give a sandbox that has its first files a copy of the snapshot instead."""
    sandbox_id, workspace_id = new_sandbox_id(), new_workspace_id()
    await store.prepare(sandbox_id, UID, IMAGE)
    await store.clone(snapshot, workspace_id)
    await store.attach(sandbox_id, workspace_id)
    assert os.listdir(store.snapshot_folder(snapshot)) == ["file"]


async def test_they_are_deleted_soon(store: BtrfsStore, snapshot: str, trash: Path) -> None:
    for _ in range(2):
        await replace_files(store, snapshot)
    assert len(os.listdir(trash)) == 2
    await eventually(lambda: not os.listdir(trash), 10, "they are deleted")
    await replace_files(store, snapshot)
    await eventually(lambda: not os.listdir(trash), 10, "later ones are deleted, too")


async def test_closing_deletes_them(
    store: BtrfsStore, snapshot: str, trash: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(old_files, "DELETE_AFTER_S", 1000)
    await replace_files(store, snapshot)
    assert os.listdir(trash)
    await asyncio.wait_for(store.close(), 10)
    assert not os.listdir(trash)


async def test_they_are_room(
    store: BtrfsStore, snapshot: str, trash: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy that finds too little room deletes them first."""
    monkeypatch.setattr(old_files, "DELETE_AFTER_S", 1000)
    await replace_files(store, snapshot)
    assert os.listdir(trash)
    monkeypatch.setattr(sizes.Space, "is_short", property(lambda _: bool(os.listdir(trash))))
    workspace_id = new_workspace_id()
    await store.clone(snapshot, workspace_id)
    assert not os.listdir(trash)
    await store.delete(workspace_id)


async def test_one_that_cannot_be_deleted(
    store: BtrfsStore, snapshot: str, trash: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others are, an operator is told, and it is tried again."""
    remove, refused = removing.remove, []

    def refusing(folder: Path, name: str) -> None:
        if folder == trash and not refused:
            refused.append(name)
            raise OSError(5, "Input/output error")
        remove(folder, name)

    monkeypatch.setattr(removing, "remove", refusing)
    monkeypatch.setattr(old_files, "RETRY_AFTER_S", 1000)
    with structlog.testing.capture_logs() as logs:
        for _ in range(2):
            await replace_files(store, snapshot)
        await eventually(lambda: bool(refused), 10, "one is refused")
    await asyncio.wait_for(store.close(), 10)
    assert "cannot delete old files yet; will retry" in [line["event"] for line in logs]
    assert not os.listdir(trash)


async def test_a_refused_one_is_tried_again_while_the_store_is_open(
    store: BtrfsStore, snapshot: str, trash: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel itself refuses: nobody can delete an immutable subvolume."""
    monkeypatch.setattr(old_files, "DELETE_AFTER_S", 1000)
    await replace_files(store, snapshot)
    (name,) = os.listdir(trash)
    immutable(trash / name, "+i")
    try:
        # A copy that needs room is not the one that fails.
        short = iter((True,))
        monkeypatch.setattr(sizes.Space, "is_short", property(lambda _: next(short, False)))
        with structlog.testing.capture_logs() as logs:
            workspace_id = new_workspace_id()
            await store.clone(snapshot, workspace_id)
            await store.delete(workspace_id)
        assert "cannot delete old files to make room; will retry" in [line["event"] for line in logs]
        assert os.listdir(trash) == [name]
    finally:
        immutable(trash / name, "-i")
    store._layout.delete_old_files()
    assert not os.listdir(trash)


async def test_a_release_that_could_not_delete(store: BtrfsStore, trash: Path) -> None:
    """The sandbox is gone, so a repeated release finds nothing. Its files are deleted all the same."""
    sandbox_id = new_sandbox_id()
    await store.prepare(sandbox_id, UID, IMAGE)
    parent = trash.parent / "sandboxes" / sandbox_id / "parent"
    immutable(parent / "volumes", "+i")
    with pytest.raises(EngineProblem, match="Operation not permitted"):
        await store.release(sandbox_id)
    (name,) = os.listdir(trash)
    immutable(trash / name / "parent/volumes", "-i")
    await store.release(sandbox_id)
    await eventually(lambda: not os.listdir(trash), 10, "its files are deleted")
