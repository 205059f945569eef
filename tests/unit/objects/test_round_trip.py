"""What was saved comes back: every name, content, mode, time and link."""

from __future__ import annotations

import asyncio
import os
import stat
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.objects.conftest import KEY, Opener, objects, snapshot
from tests.unit.objects.trees import build_odd_tree, contents, fill

from sandlot.domain.errors import InvalidRequest, NotFound, StorageProblem, TooLarge
from sandlot.domain.workspaces.objects.locations import parse_location
from sandlot.providers.trees.place import empty
from sandlot.worker.workspaces.objects.bucket.bucket import Bucket
from sandlot.worker.workspaces.objects.options import ObjectOptions
from sandlot.worker.workspaces.objects.storage import ObjectStorage

Folders = Callable[[str], Path]


@pytest.mark.parametrize("key", [None, KEY], ids=["plain", "encrypted"])
async def test_an_odd_tree_comes_back(opened: Opener, folders: Folders, key: bytes | None) -> None:
    source, into = folders("source"), folders("into")
    build_odd_tree(source)
    storage = await opened(key)
    saved = await storage.save("tenant", snapshot(1), source, b'{"name": "odd"}')
    loaded = await storage.load("tenant", snapshot(1), into)
    assert contents(into) == contents(source)
    assert loaded.meta == b'{"name": "odd"}'
    assert (loaded.entries, loaded.files) == (saved.entries, saved.files)
    assert saved.left_out == ()
    # Holes stay holes: a terabyte takes a few blocks, and every other block of the other file.
    assert os.lstat(into / "sparse").st_blocks <= 256
    assert os.lstat(into / "holes").st_blocks * 512 <= 1_200_000
    # Rights that a program's file would give to others are not kept.
    assert stat.S_IMODE(os.lstat(into / "setuid").st_mode) == 0o755
    again = await storage.save("tenant", snapshot(2), into)
    assert again.bytes_sent < saved.bytes_sent / 2, "the contents are there"


async def test_devices_and_other_file_systems_are_left_out(opened: Opener, folders: Folders) -> None:
    source, into = folders("source"), folders("into")
    os.mknod(source / "null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    os.mknod(source / "whiteout", stat.S_IFCHR, 0)
    (source / "kept").write_text("kept")
    storage = await opened()
    assert set((await storage.save("tenant", snapshot(1), source)).left_out) == {b"null", b"whiteout"}
    await storage.load("tenant", snapshot(1), into)
    assert os.listdir(into) == ["kept"]


async def test_folders_may_be_deeper_than_a_path_is_long(opened: Opener, folders: Folders) -> None:
    source, into = folders("source"), folders("into")
    previous = os.getcwd()
    try:
        os.chdir(source)
        for _ in range(600):
            os.mkdir("a-name-of-some-length")
            os.chdir("a-name-of-some-length")
        Path("bottom").write_text("here")
    finally:
        os.chdir(previous)
    storage = await opened()
    saved = await storage.save("tenant", snapshot(1), source)
    await storage.load("tenant", snapshot(1), into)
    copied = await storage.save("tenant", snapshot(2), into)
    assert (copied.entries, copied.files) == (saved.entries, saved.files) == (601, 1)


async def test_too_deep_folders_are_refused(opened: Opener, folders: Folders) -> None:
    source = folders("source")
    at = os.open(source, os.O_RDONLY)
    for _ in range(4200):
        os.mkdir("d", dir_fd=at)
        inside = os.open("d", os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = inside
    os.close(at)
    storage = await opened()
    with pytest.raises(TooLarge, match="4096 deep"):
        await storage.save("tenant", snapshot(1), source)
    assert await storage.list() == []


async def test_everything_belongs_to_the_owner_of_the_folder(opened: Opener, folders: Folders) -> None:
    source, into = folders("source"), folders("into")
    build_odd_tree(source)
    storage = await opened()
    await storage.save("tenant", snapshot(1), source)
    os.chown(into, 12345, 12346)
    await storage.load("tenant", snapshot(1), into)
    assert contents(into) == contents(source)
    for folder, names, files in os.walk(into):
        for name in (".", *names, *files):
            found = os.lstat(os.path.join(folder, name))
            assert (found.st_uid, found.st_gid) == (12345, 12346), name


async def test_a_load_needs_an_empty_folder_and_room(opened: Opener, tree: Path, folders: Folders) -> None:
    storage, into = await opened(), folders("into")
    await storage.save("tenant", snapshot(1), tree)
    with pytest.raises(TooLarge, match="more data"):
        await storage.load("tenant", snapshot(1), into, max_bytes=1000)
    assert os.listdir(into) == []
    (into / "there").touch()
    with pytest.raises(InvalidRequest, match="not empty"):
        await storage.load("tenant", snapshot(1), into)
    assert os.listdir(into) == ["there"], "what was there stays"


async def test_tenants_have_nothing_in_common(opened: Opener, tree: Path, store: Path) -> None:
    storage = await opened()
    first = await storage.save("one", snapshot(1), tree)
    second = await storage.save("two", snapshot(2), tree)
    assert second.bytes_sent >= first.bytes_sent * 0.99
    assert await storage.list() == [("one", snapshot(1)), ("two", snapshot(2))]
    assert await storage.list("two") == [("two", snapshot(2))]
    with pytest.raises(NotFound):
        await storage.describe("two", snapshot(1))
    names = [path.rpartition("/")[2] for path in objects(store) if "/chunks/" in path]
    assert len(names) == len(set(names))
    assert not any(b"one" in content or b"large" in content for content in objects(store).values())


async def test_calls_may_be_repeated(opened: Opener, tree: Path) -> None:
    storage = await opened()
    first = await storage.save("tenant", snapshot(1), tree)
    again = await storage.save("tenant", snapshot(1), tree)
    assert (again.bytes_sent, again.files) == (0, first.files)
    await storage.delete("tenant", snapshot(1))
    await storage.delete("tenant", snapshot(1))
    assert await storage.list() == []
    with pytest.raises(NotFound, match="not in the object storage"):
        await storage.describe("tenant", snapshot(1))
    with pytest.raises(InvalidRequest):
        await storage.delete("tenant", "../../format")


@pytest.mark.parametrize("what", ["save", "load"])
async def test_a_cancelled_call_has_stopped_and_left_nothing(
    opened: Opener, folders: Folders, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    source, into = folders("source"), folders("into")
    fill(source, folders=4, files=100, size=20_000)
    storage = await opened(transfers=1)
    if what == "load":
        await storage.save("tenant", snapshot(1), source)
    begun, going_on = threading.Event(), threading.Event()
    name = "put" if what == "save" else "get"
    real = getattr(Bucket, name)

    def waiting(bucket: Bucket, path: str, *more: bytes) -> bytes | None:
        if "/chunks/" in path:
            begun.set()
            assert going_on.wait(60)
        found: bytes | None = real(bucket, path, *more)
        return found

    monkeypatch.setattr(Bucket, name, waiting)
    call = (
        storage.save("tenant", snapshot(1), source)
        if what == "save"
        else storage.load("tenant", snapshot(1), into)
    )
    running = asyncio.create_task(call)
    assert await asyncio.to_thread(begun.wait, 60)
    running.cancel()
    await asyncio.sleep(0)
    assert not running.done(), "it still uses its folder"
    going_on.set()
    with pytest.raises(asyncio.CancelledError):
        await running
    monkeypatch.undo()
    assert os.listdir(into) == []
    if what == "save":
        assert await storage.list() == []
        await storage.save("tenant", snapshot(1), source)
    await storage.load("tenant", snapshot(1), into)
    assert contents(into) == contents(source)


async def test_another_key_is_refused(opened: Opener, tree: Path) -> None:
    await (await opened()).save("tenant", snapshot(1), tree)
    for key in (None, bytes(32)):
        with pytest.raises(StorageProblem, match="SANDLOT_OBJECTS_KEY_FILE"):
            await opened(key)


NAMES = st.binary(min_size=1, max_size=6).filter(lambda name: not set(name) & {0, 0x2F} and name.strip(b"."))
FILES = st.one_of(
    st.binary(max_size=50),
    st.tuples(st.binary(min_size=1, max_size=3), st.integers(1, 400_000)).map(lambda pair: pair[0] * pair[1]),
)
TREES = st.recursive(
    st.dictionaries(NAMES, FILES, max_size=4),
    lambda inner: st.dictionaries(NAMES, FILES | inner, max_size=4),
    max_leaves=12,
)


def build(root: bytes, tree: dict[bytes, object]) -> None:
    for name, what in tree.items():
        path = os.path.join(root, name)
        if isinstance(what, dict):
            os.mkdir(path)
            build(path, what)
        else:
            assert isinstance(what, bytes)
            Path(os.fsdecode(path)).write_bytes(what)


@settings(max_examples=40)
@given(trees=st.lists(TREES, min_size=1, max_size=3), in_place=st.booleans())
async def test_any_trees_come_back_each_based_on_the_last(
    trees: list[dict[bytes, object]], in_place: bool
) -> None:
    with tempfile.TemporaryDirectory(prefix="sandlot-test-") as name:
        folder = Path(name)
        storage = ObjectStorage(ObjectOptions(parse_location(f"file://{folder}/store"), key=KEY))
        await storage.open()
        try:
            source, into = folder / "source", folder / "into"
            source.mkdir()
            into.mkdir()
            for number, tree in enumerate(trees):
                if not in_place:
                    empty(source)
                for path, what in tree.items():
                    there = source / os.fsdecode(path)
                    if there.is_dir():
                        empty(there)
                        there.rmdir()
                    elif isinstance(what, dict) and there.exists():
                        there.unlink()
                build(os.fsencode(source), tree)
                base = snapshot(number - 1) if number else None
                await storage.save("tenant", snapshot(number), source, base=base)
                await storage.load("tenant", snapshot(number), into)
                assert contents(into) == contents(source)
                empty(into)
        finally:
            await storage.close()
