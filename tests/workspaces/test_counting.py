"""What a workspace is charged, and what a recount of its files makes of that."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from threading import RLock
from types import SimpleNamespace

import pytest
import pytest_asyncio

from sandlot.domain.capacity.limits import MIB
from sandlot.domain.ids import new_snapshot_id, new_workspace_id
from sandlot.providers.docker.workspaces.btrfs import recounting, trees
from sandlot.providers.docker.workspaces.btrfs.layout import Layout
from sandlot.providers.docker.workspaces.btrfs.reading import Reader
from sandlot.providers.docker.workspaces.btrfs.recounting import Recounting
from sandlot.providers.docker.workspaces.btrfs.sizes import Sizes
from sandlot.providers.docker.workspaces.btrfs.store import BtrfsStore

QUOTA = 4 * MIB
OWNER = "test-counting"
TAG = "0" * 8
ROUNDS = 3


@pytest_asyncio.fixture
async def workspace(btrfs: Path) -> AsyncIterator[Path]:
    store = BtrfsStore(btrfs, OWNER, QUOTA)
    await store.open()
    snapshot_id, workspace_id = new_snapshot_id(TAG), new_workspace_id()
    async with store.new_snapshot(snapshot_id):
        pass
    await store.clone(snapshot_id, workspace_id)
    yield btrfs / OWNER / "workspaces" / workspace_id
    await store.delete(workspace_id)
    await store.delete(snapshot_id)
    await store.close()


def empty_file(folder: Path, number: int) -> None:
    (folder / f"{number}{'n' * 200}").touch()


def short_name(folder: Path, number: int) -> None:
    (folder / str(number)).touch()


def symlink(folder: Path, number: int) -> None:
    (folder / f"l{number}").symlink_to("t" * 2000)


def empty_folder(folder: Path, number: int) -> None:
    (folder / f"d{number}").mkdir()


def hard_link(folder: Path, number: int) -> None:
    (folder / "linked").touch()
    # A file has a bounded number of names in one folder.
    (folder / f"f{number // 30}").mkdir(exist_ok=True)
    os.link(folder / "linked", folder / f"f{number // 30}" / f"{number}{'n' * 100}")


def attribute(folder: Path, number: int) -> None:
    (folder / f"a{number // 3}").touch()
    os.setxattr(folder / f"a{number // 3}", f"user.{number}", b"v" * 3000)


def small_file(folder: Path, number: int) -> None:
    (folder / f"s{number}").write_bytes(b"x" * 1500)


def fill(workspace: Path, make: Callable[[Path, int], None], numbers: Iterator[int]) -> None:
    try:
        for number in numbers:
            make(workspace, number)
    except OSError as error:
        assert error.errno == errno.EDQUOT, error
    os.sync()


async def test_a_folder_with_any_number_of_names(
    btrfs: Path, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No walk reads more of them than it may count: a sandbox could fill the worker's memory."""
    monkeypatch.setattr(trees, "MAX_ENTRIES", 10)
    for number in range(10):
        (workspace / f"few{number}").touch()
    assert trees.size_of(workspace) is not None
    assert not trees.compare(workspace, workspace).truncated
    read = []

    @contextlib.contextmanager
    def counted(path: bytes) -> Iterator[Iterator[os.DirEntry[bytes]]]:
        with scandir(path) as entries:
            yield (read.append(entry.name) or entry for entry in entries)

    scandir = os.scandir
    monkeypatch.setattr(os, "scandir", counted)
    other = workspace / "other"
    other.mkdir()
    for number in range(100):
        (other / f"many{number}").touch()
    assert trees.size_of(other) is None
    assert len(read) == 11
    read.clear()
    assert trees.compare(other, other).truncated
    assert len(read) == 11
    # Also where the whole folder is new.
    (workspace / "old").mkdir()
    (workspace / "new").mkdir()
    other.rename(workspace / "new" / "other")
    read.clear()
    assert trees.compare(workspace / "old", workspace / "new").truncated
    assert len(read) == 12


async def test_a_workspace_that_cannot_be_counted(
    btrfs: Path, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is tried again no more often than its failed count costs."""
    fill(workspace, small_file, itertools.count())
    clock, tried = [1000.0], []

    def fail(root: Path) -> int:
        tried.append(clock[0])
        clock[0] += 10.0
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(recounting, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(trees, "size_of", fail)
    layout, sizes = Layout(btrfs / OWNER), Sizes(QUOTA)
    sizes.on = True
    counting = Recounting(layout, sizes, Reader(layout, RLock()))
    counting.count_all()
    assert tried == [1000.0]
    clock[0] = 1000.0 + recounting.COST * 10.0 - 1.0
    counting.count_all()
    assert tried == [1000.0]
    clock[0] += 1.0
    counting.count_all()
    assert tried == [1000.0, 1000.0 + recounting.COST * 10.0]


@pytest.mark.parametrize(
    "make", [empty_file, short_name, symlink, empty_folder, hard_link, attribute, small_file]
)
async def test_a_recount_gives_no_more_than_the_quota(
    btrfs: Path, workspace: Path, make: Callable[[Path, int], None]
) -> None:
    layout, sizes = Layout(btrfs / OWNER), Sizes(QUOTA)
    sizes.on = True
    numbers = itertools.count()
    for _ in range(ROUNDS):
        fill(workspace, make, numbers)
        Recounting(layout, sizes, Reader(layout, RLock())).count_all()
    charge = sizes.charge(workspace)
    assert charge is not None
    assert charge.charged <= 2 * QUOTA, f"{next(numbers)} made"
    size = trees.size_of(workspace)
    assert size is not None
    # Files count in whole blocks, as du says, while short ones stand in the records themselves.
    assert QUOTA * 0.4 < size < QUOTA * 2.5
