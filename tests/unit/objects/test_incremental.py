"""What a save sends and reads when little has changed."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.unit.objects.conftest import Opener, objects, snapshot
from tests.unit.objects.trees import contents, fill

MB = 1_000_000
Folders = Callable[[str], Path]


def age(root: Path) -> None:
    """Make one last change, later than all others by more than a tick of the clock."""
    newest = max(path.lstat().st_ctime_ns for path in root.rglob("*"))
    stamp = root / "zz-stamp"
    while True:
        stamp.write_bytes(b"")
        os.utime(stamp)
        if stamp.lstat().st_ctime_ns > newest + 150_000_000:
            return


@pytest.mark.slow
async def test_a_change_of_1_mb_in_200_mb_sends_less_than_5_mb(
    opened: Opener, folders: Folders, store: Path
) -> None:
    source, into = folders("source"), folders("into")
    fill(source, folders=100, files=100, size=15_000)
    large = source / "large"
    content = bytearray(random.Random(5).randbytes(64 * MB))
    large.write_bytes(content)
    age(source)
    storage = await opened()
    first = await storage.save("tenant", snapshot(0), source)
    assert first.bytes_total > 200 * MB
    assert len(objects(store)) < 500, "10,000 small files are not 10,000 objects"
    new = random.Random(6).randbytes

    def overwrite() -> None:
        content[30 * MB : 31 * MB] = new(MB)
        large.write_bytes(content)

    def insert() -> None:
        content[20 * MB : 20 * MB] = new(MB)
        large.write_bytes(content)

    def append() -> None:
        with large.open("ab") as file:
            file.write(new(MB))

    def scatter() -> None:
        for number in range(100):
            (source / f"folder{number:03}" / "file050").write_bytes(new(10_000))

    def add() -> None:
        (source / "folder000" / "added").write_bytes(new(MB))

    changes = (overwrite, insert, append, scatter, add)
    for number, change in enumerate(changes, start=1):
        change()
        age(source)
        saved = await storage.save("tenant", snapshot(number), source, base=snapshot(number - 1))
        assert saved.bytes_sent < 5 * MB, change.__name__
        assert saved.files_read <= 103, change.__name__
    await storage.load("tenant", snapshot(len(changes)), into)
    assert contents(into) == contents(source)


async def test_an_unchanged_tree_is_not_read(opened: Opener, tree: Path) -> None:
    age(tree)
    storage = await opened()
    first = await storage.save("tenant", snapshot(1), tree)
    again = await storage.save("tenant", snapshot(2), tree, base=snapshot(1))
    assert (first.files_read, again.files_read) == (first.files, 1), "the newest file may have changed since"
    assert again.bytes_sent < 1000


async def test_a_change_that_only_its_time_shows_is_seen(
    opened: Opener, tree: Path, folders: Folders
) -> None:
    """Same size, same inode, and the time of its content set back."""
    age(tree)
    storage, into = await opened(), folders("into")
    await storage.save("tenant", snapshot(1), tree)
    before = (tree / "large").stat()
    with (tree / "large").open("r+b") as file:
        file.write(b"changed")
    os.utime(tree / "large", ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (tree / "large").stat().st_size == before.st_size
    await storage.save("tenant", snapshot(2), tree, base=snapshot(1))
    await storage.load("tenant", snapshot(2), into)
    assert contents(into) == contents(tree)


async def test_what_was_written_just_before_a_snapshot_is_read_again(
    opened: Opener, tree: Path, folders: Folders
) -> None:
    """It may have been written again in the same tick of the clock, after the snapshot."""
    age(tree)
    (tree / "last").write_bytes(b"first")
    (tree / "last too").write_bytes(b"first")
    storage, into = await opened(), folders("into")
    await storage.save("tenant", snapshot(1), tree)
    saved = await storage.save("tenant", snapshot(2), tree, base=snapshot(1))
    assert 2 <= saved.files_read <= 3
    await storage.load("tenant", snapshot(2), into)
    assert contents(into) == contents(tree)


async def test_equal_folders_of_two_workspaces_are_sent_once(opened: Opener, folders: Folders) -> None:
    """As when two sessions install the same packages, in different surroundings."""
    one, two = folders("one"), folders("two")
    for root, count in ((one, 3), (two, 40)):
        root.joinpath("aa").mkdir()
        for number in range(count):
            (root / "aa" / f"own{number}").write_bytes(random.Random(count * 1000 + number).randbytes(9000))
        (root / "packages").mkdir()
        fill(root / "packages", folders=20, files=40, size=20_000)
    storage = await opened()
    first = await storage.save("tenant", snapshot(1), one)
    second = await storage.save("tenant", snapshot(2), two)
    assert second.bytes_sent < first.bytes_sent / 2


async def test_many_small_saves_do_not_pile_up(opened: Opener, folders: Folders, store: Path) -> None:
    """Each leaves a chunk that is small, or of which little is needed any more. The next ones renew those."""
    source, into = folders("source"), folders("into")
    fill(source, folders=4, files=50, size=10_000)
    storage = await opened()
    await storage.save("tenant", snapshot(0), source)
    for number in range(1, 91):
        (source / "folder000" / f"more{number:03}").write_bytes(random.Random(number).randbytes(500))
        await storage.save("tenant", snapshot(number), source, base=snapshot(number - 1))
    for number in range(90):
        await storage.delete("tenant", snapshot(number))
    kept = await opened(grace_s=0)
    await kept.collect()
    await kept.collect()
    assert sum("/chunks/" in path for path in objects(store)) < 80
    await kept.load("tenant", snapshot(90), into)
    assert contents(into) == contents(source)
