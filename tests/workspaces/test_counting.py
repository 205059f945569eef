"""What a workspace is charged, and what a recount of its files makes of that."""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from threading import RLock

import pytest
import pytest_asyncio

from sandlot.domain.capacity.limits import MIB
from sandlot.domain.ids import new_snapshot_id, new_workspace_id
from sandlot.providers.docker.workspaces.btrfs import trees
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
