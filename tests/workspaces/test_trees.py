"""Trees of the btrfs store: imports, archives of images that want out, and folders that cannot be used."""

from __future__ import annotations

import io
import os
import stat
import tarfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from sandlot.domain.errors import EngineProblem, InvalidRequest, NotFound, StorageFull
from sandlot.domain.ids import new_sandbox_id, new_snapshot_id, new_workspace_id
from sandlot.providers.docker.workspaces.btrfs import quotas, sizes, subvolumes
from sandlot.providers.docker.workspaces.btrfs.checks import check_btrfs
from sandlot.providers.docker.workspaces.btrfs.mounts import FILES_UID
from sandlot.providers.docker.workspaces.btrfs.seeds import archives
from sandlot.providers.docker.workspaces.btrfs.store import BtrfsStore
from tests.workspaces.dying_store import IMAGE
from tests.workspaces.storage import mounted_btrfs, require_btrfs

TAG = "0" * 8


@pytest_asyncio.fixture
async def opened(btrfs: Path) -> AsyncIterator[BtrfsStore]:
    trees = BtrfsStore(btrfs, "test-trees")
    await trees.open()
    yield trees
    stored = await trees.list()
    for stored_id in stored.workspaces | stored.snapshots:
        await trees.delete(stored_id)
    await trees.close()
    assert os.listdir(btrfs / "test-trees" / "staging") == []


# --- imports ----------------------------------------------------------------------------------


async def test_an_import_becomes_a_snapshot(opened: BtrfsStore) -> None:
    snapshot_id, workspace_id = new_snapshot_id(TAG), new_workspace_id()
    async with opened.new_snapshot(snapshot_id) as folder:
        assert folder.stat().st_uid == FILES_UID
        (folder / "a").write_text("1")
        assert (await opened.list()).snapshots == frozenset()
    assert (opened.snapshot_folder(snapshot_id) / "a").read_text() == "1"
    with pytest.raises(OSError, match="Read-only"):
        (opened.snapshot_folder(snapshot_id) / "b").touch()
    async with opened.new_snapshot(snapshot_id) as folder:  # done already
        (folder / "a").write_text("2")
    assert (opened.snapshot_folder(snapshot_id) / "a").read_text() == "1"
    await opened.clone(snapshot_id, workspace_id)
    assert not await opened.changed(workspace_id, snapshot_id)
    assert not (await opened.compare(snapshot_id, workspace_id)).added


async def test_an_import_that_fails_leaves_nothing(opened: BtrfsStore) -> None:
    snapshot_id = new_snapshot_id(TAG)

    async def fail() -> None:
        async with opened.new_snapshot(snapshot_id) as folder:
            (folder / "a").write_text("1")
            raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        await fail()
    assert (await opened.list()).snapshots == frozenset()
    with pytest.raises(NotFound):
        opened.snapshot_folder(snapshot_id)


async def test_ids_are_no_paths(opened: BtrfsStore) -> None:
    for call in (
        opened.delete("../../etc"),
        opened.snapshot("..", new_snapshot_id(TAG)),
        opened.clone("snp_..", new_workspace_id()),
        opened.release("../x"),
    ):
        with pytest.raises((InvalidRequest, NotFound)):
            await call


async def test_a_full_storage_refuses_snapshots(opened: BtrfsStore, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot_id = new_snapshot_id(TAG)
    async with opened.new_snapshot(snapshot_id):
        pass
    workspace_id = new_workspace_id()
    await opened.clone(snapshot_id, workspace_id)
    monkeypatch.setattr(sizes, "RESERVED_BYTES", 2**60)
    for call in (
        opened.snapshot(workspace_id, new_snapshot_id(TAG)),
        opened.clone(snapshot_id, new_workspace_id()),
    ):
        with pytest.raises(StorageFull, match="Delete snapshots"):
            await call
    await opened.delete(snapshot_id)


async def test_two_owners_share_a_file_system(btrfs: Path, opened: BtrfsStore) -> None:
    snapshot_id = new_snapshot_id(TAG)
    async with opened.new_snapshot(snapshot_id):
        pass
    other = BtrfsStore(btrfs, "test-other/../trees")
    await other.open()
    assert (await other.list()).snapshots == frozenset()
    await other.delete(snapshot_id)
    await other.close()
    assert (await opened.list()).snapshots == {snapshot_id}


async def test_subvolumes_inside_go_too(btrfs: Path, opened: BtrfsStore) -> None:
    """As a sandbox without the seccomp profile could have made them."""
    sandbox_id = new_sandbox_id()
    await opened.prepare(sandbox_id, 0x7000_0002, IMAGE)
    workspace = btrfs / "test-trees" / "sandboxes" / sandbox_id / "parent" / "workspace"
    (workspace / "folder").mkdir()
    with subvolumes.opened(workspace / "folder") as folder:
        subvolumes.create(folder, "inside")
    with subvolumes.opened(workspace / "folder" / "inside") as folder:
        subvolumes.create(folder, "deeper")
    await opened.release(sandbox_id)
    assert not (btrfs / "test-trees" / "sandboxes" / sandbox_id).exists()
    assert os.listdir(btrfs / "test-trees" / "trash") == []


# --- archives ---------------------------------------------------------------------------------


def archive(*members: tarfile.TarInfo) -> io.BytesIO:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as tar:
        for member in members:
            tar.addfile(member, io.BytesIO(b"x" * member.size))
    content.seek(0)
    return content


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", mode: int = 0o644) -> tarfile.TarInfo:
    found = tarfile.TarInfo(name)
    found.type, found.linkname, found.mode = kind, link, mode
    found.size = 1 if kind == tarfile.REGTYPE else 0
    return found


WORKSPACE = [member("sandbox", tarfile.DIRTYPE, mode=0o755), member("sandbox/workspace", tarfile.DIRTYPE)]


def fill(folder: Path, *members: tarfile.TarInfo) -> None:
    with subvolumes.opened(folder) as descriptor:
        archives.fill(descriptor, archive(*WORKSPACE, *members))


def test_an_archive_is_written_as_it_is(tmp_path: Path) -> None:
    fill(
        tmp_path,
        member("sandbox/workspace/d", tarfile.DIRTYPE, mode=0o500),
        member("sandbox/workspace/d/f", mode=0o4755),
        member("sandbox/workspace/hard", tarfile.LNKTYPE, "sandbox/workspace/d/f"),
        member("sandbox/workspace/soft", tarfile.SYMTYPE, "/etc/passwd"),
        member("sandbox/workspace/null", tarfile.CHRTYPE),
    )
    assert sorted(os.listdir(tmp_path)) == ["d", "hard", "soft"]
    assert stat.S_IMODE((tmp_path / "d").stat().st_mode) == 0o500
    assert stat.S_IMODE((tmp_path / "hard").stat().st_mode) == 0o755
    assert (tmp_path / "hard").stat().st_nlink == 2
    assert (tmp_path / "soft").readlink() == Path("/etc/passwd")
    assert {path.lstat().st_uid for path in (tmp_path, *tmp_path.rglob("*"))} == {FILES_UID}


@pytest.mark.parametrize(
    "members",
    [
        [member("sandbox/workspace/../../out")],
        [member("../out")],
        [member("/etc/out")],
        [member("sandbox/other")],
        [member("sandbox/workspace/l", tarfile.SYMTYPE, "OUT"), member("sandbox/workspace/l/out")],
        [member("sandbox/workspace/l", tarfile.SYMTYPE, "OUT"), member("sandbox/workspace/l")],
        [member("sandbox/workspace/h", tarfile.LNKTYPE, "../OUT/secret")],
        [member("sandbox/workspace/l", tarfile.SYMTYPE, "OUT"),
         member("sandbox/workspace/h", tarfile.LNKTYPE, "sandbox/workspace/l/secret")],
        [member("sandbox/workspace/a"), member("sandbox/workspace/a/b")],
        [member("sandbox/workspace/h", tarfile.LNKTYPE, "sandbox/workspace")],
    ],
)  # fmt: skip
def test_an_archive_cannot_reach_out(tmp_path: Path, members: list[tarfile.TarInfo]) -> None:
    outside, inside = tmp_path / "outside", tmp_path / "inside"
    outside.mkdir()
    inside.mkdir()
    (outside / "secret").write_text("secret")
    for one in members:
        one.linkname = one.linkname.replace("OUT", str(outside))
    with pytest.raises((EngineProblem, OSError)):
        fill(inside, *members)
    assert os.listdir(outside) == ["secret"]
    assert (outside / "secret").stat().st_nlink == 1
    assert (outside / "secret").stat().st_uid == os.getuid()


# --- folders that cannot be used --------------------------------------------------------------


def test_why_a_folder_cannot_be_used(btrfs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert check_btrfs(btrfs / "test-check") is None
    assert os.listdir(btrfs / "test-check") == []
    (btrfs / "test-check").rmdir()
    assert "is not on btrfs" in str(check_btrfs(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert "root" in str(check_btrfs(btrfs))


async def test_a_store_that_cannot_be_opened_says_why(tmp_path: Path) -> None:
    with pytest.raises(EngineProblem, match=r"not on btrfs.*SANDLOT_WORKSPACE_STORE=volume"):
        await BtrfsStore(tmp_path, "test-trees").open()


async def test_a_file_system_without_quotas() -> None:
    require_btrfs()
    with mounted_btrfs("256M", with_quotas=False) as folder:
        plain = BtrfsStore(folder, "test-trees", 2**30)
        await plain.open()
        assert not plain.abilities.quotas
        assert "storage init" in plain.abilities.note
        snapshot_id, workspace_id = new_snapshot_id(TAG), new_workspace_id()
        async with plain.new_snapshot(snapshot_id) as tree:
            (tree / "a").write_text("1")
        await plain.clone(snapshot_id, workspace_id)
        assert await plain.used_bytes(workspace_id) is None
        await plain.close()
        with subvolumes.opened(folder) as descriptor:
            assert quotas.enable(descriptor)
        limited = BtrfsStore(folder, "test-trees", 2**30)
        await limited.open()
        assert limited.abilities.quotas
        assert await limited.used_bytes(workspace_id) is not None
        await limited.close()
