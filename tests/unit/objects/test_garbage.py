"""Chunks that no snapshot needs are freed, and no other, whatever happens at the same time."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.unit.objects.conftest import Opener, objects, snapshot
from tests.unit.objects.trees import contents

from sandlot.domain.errors import StorageProblem
from sandlot.domain.workspaces.exports import Mark
from sandlot.domain.workspaces.objects.garbage import Sorting, longest_save_s
from sandlot.domain.workspaces.objects.locations import Location
from sandlot.providers.trees.place import empty
from sandlot.worker.workspaces.objects.bucket.bucket import Bucket
from sandlot.worker.workspaces.objects.bucket.chunks import ChunkStore, Sending, place_of
from sandlot.worker.workspaces.objects.bucket.keys import RootKeys
from sandlot.worker.workspaces.objects.options import ObjectOptions
from sandlot.worker.workspaces.objects.storage import ObjectStorage

GRACE_S = 3600.0
Folders = Callable[[str], Path]


class Clock:
    def __init__(self) -> None:
        self.now = 2_000_000_000.0  # later than the objects that the tests write

    def __call__(self) -> float:
        return self.now


async def test_marks_are_found_and_go_with_their_snapshots(opened: Opener, tree: Path, store: Path) -> None:
    storage, session = await opened(), "ses_" + "1" * 32
    await storage.save("tenant", snapshot(1), tree)
    kept, old = Mark(2, 1_700_000_000.25, snapshot(1)), Mark(11, 1_700_000_001.5, snapshot(2))
    for mark in (kept, old, kept):
        await storage.mark("tenant", session, mark)
    other = await opened()  # another worker
    assert await other.marks("tenant", session) == [old, kept]
    assert await other.marks("tenant", "ses_" + "2" * 32) == []
    assert await other.marks("another", session) == []
    await other.collect()
    assert await storage.marks("tenant", session) == [kept]
    await storage.unmark("tenant", session, kept)
    await storage.unmark("tenant", session, kept)
    assert not [path for path in objects(store) if "/sessions/" in path]


async def test_deleting_frees_what_no_other_snapshot_needs(
    opened: Opener, tree: Path, folders: Folders, store: Path
) -> None:
    storage, hasty = await opened(), await opened(grace_s=0.0)
    await storage.save("tenant", snapshot(1), tree)
    (tree / "own").write_bytes(random.Random(1).randbytes(300_000))
    await storage.save("tenant", snapshot(2), tree, base=snapshot(1))
    for _ in range(2):
        collected = await hasty.collect()
        assert (collected.deleted, collected.condemned) == (0, 0)
    before = sum(map(len, objects(store).values()))
    await storage.delete("tenant", snapshot(2))
    condemned = await hasty.collect()
    assert (condemned.deleted, condemned.condemned > 0) == (0, True)
    freed = await hasty.collect()
    assert freed.deleted == condemned.condemned
    assert freed.freed_bytes > 300_000
    assert before - sum(map(len, objects(store).values())) > 300_000
    await storage.load("tenant", snapshot(1), folders("into"))
    await storage.delete("tenant", snapshot(1))
    await hasty.collect()
    await hasty.collect()
    assert not [path for path in objects(store) if "/chunks/" in path]


async def test_the_grace_is_kept(opened: Opener, tree: Path, store: Path) -> None:
    clock = Clock()
    storage = await opened(clock=clock, grace_s=GRACE_S)
    await storage.save("tenant", snapshot(1), tree)
    await storage.delete("tenant", snapshot(1))
    assert (await storage.collect()).condemned == 0, "they may be on their way to a manifest"
    for path in store.rglob("chunks/*/*"):
        os.utime(path, (0, 0))
    assert (await storage.collect()).condemned > 0
    clock.now += GRACE_S - 1
    assert (await storage.collect()).deleted == 0
    clock.now += 2
    assert (await storage.collect()).deleted > 0


async def test_a_save_relies_on_nothing_that_is_condemned(
    opened: Opener, tree: Path, folders: Folders
) -> None:
    """The chunks of a deleted snapshot are there, and saving its files again sends them under other names."""
    storage, hasty, into = await opened(), await opened(grace_s=0.0), folders("into")
    first = await storage.save("tenant", snapshot(1), tree)
    await storage.delete("tenant", snapshot(1))
    assert (await hasty.collect()).condemned > 0
    second = await storage.save("tenant", snapshot(2), tree)
    assert second.bytes_sent >= first.bytes_sent * 0.99
    assert (await hasty.collect()).deleted > 0
    for _ in range(2):
        await storage.load("tenant", snapshot(2), into)
        assert contents(into) == contents(tree)
        empty(into)
        await hasty.collect()


async def test_a_base_with_condemned_chunks_is_not_relied_on(
    opened: Opener, tree: Path, folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are spared only once a collection has seen that base, and it may be deleted before."""
    storage, hasty, into = await opened(), await opened(grace_s=0.0), folders("into")
    await _save_while_condemned(storage, hasty, tree, monkeypatch)
    await storage.save("tenant", snapshot(3), tree, base=snapshot(2))
    await storage.delete("tenant", snapshot(2))
    assert (await hasty.collect()).deleted > 0
    await storage.load("tenant", snapshot(3), into)
    assert contents(into) == contents(tree)


async def test_a_chunk_that_is_needed_again_is_spared(
    opened: Opener, tree: Path, folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage, hasty, into = await opened(), await opened(grace_s=0.0), folders("into")
    await _save_while_condemned(storage, hasty, tree, monkeypatch)
    for _ in range(3):
        assert (await hasty.collect()).deleted == 0
    await storage.load("tenant", snapshot(2), into)
    assert contents(into) == contents(tree)


async def _save_while_condemned(
    storage: ObjectStorage, hasty: ObjectStorage, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Save a snapshot that began before the chunks that it relies on were condemned, and published after."""
    await storage.save("tenant", snapshot(1), tree)
    await storage.delete("tenant", snapshot(1))
    assert (await hasty.collect()).condemned > 0
    with monkeypatch.context() as patch:
        patch.setattr(ChunkStore, "condemned", lambda _: {})
        saved = await storage.save("tenant", snapshot(2), tree)
    assert saved.bytes_sent < 5000


async def test_a_save_that_takes_too_long_is_given_up(opened: Opener, tree: Path) -> None:
    storage = await opened(grace_s=0.0)
    with pytest.raises(StorageProblem, match="took longer"):
        await storage.save("tenant", snapshot(1), tree)
    assert await storage.list() == []


async def test_nothing_is_freed_while_a_snapshot_cannot_be_read(
    opened: Opener, tree: Path, store: Path
) -> None:
    storage, patient = await opened(grace_s=0.0), await opened()
    await patient.save("tenant", snapshot(1), tree)
    (tree / "more").write_bytes(b"more")
    await patient.save("tenant", snapshot(2), tree)
    await storage.delete("tenant", snapshot(1))
    [head] = store.rglob("snp_*")
    whole = head.read_bytes()
    head.write_bytes(whole[:-1])
    with pytest.raises(StorageProblem, match="damaged"):
        await storage.collect("tenant")
    assert (await storage.collect()).condemned == 0
    head.write_bytes(whole)
    assert (await storage.collect()).condemned > 0


async def test_one_collection_at_a_time(opened: Opener, tree: Path, store: Path) -> None:
    storage, patient = await opened(grace_s=0.0), await opened()
    await patient.save("tenant", snapshot(1), tree)
    await storage.delete("tenant", snapshot(1))
    patient.store("tenant").write_object("collecting", b"another")
    assert (await storage.collect()).condemned == 0
    [lock] = store.rglob("collecting")
    lock.unlink()
    assert (await storage.collect()).condemned > 0
    assert not list(store.rglob("collecting"))


def test_sending_avoids_condemned_names(tmp_path: Path) -> None:
    store = ChunkStore(Bucket(ObjectOptions(Location(str(tmp_path)))), RootKeys(None).of("tenant"))
    plain = Sending(store, {}).name(b"content")
    first, second = (Sending(store, {place_of(plain): 0.0}) for _ in range(2))
    names = {plain, first.name(b"content"), second.name(b"content")}
    assert len(names) == 3
    assert first.name(b"content") == first.name(b"content")
    for name in names:
        first.send(name, b"content")
        assert store.get(name) == b"content"


# --- the rule, against everything that may happen in any order ------------------------------------------


class World:
    """Saves and collections at any pace, as the rule sees them. One content: what matters is when."""

    grace_s = 100.0

    def __init__(self, source: random.Random) -> None:
        self.source = source
        self.now = 1000.0
        self.chunks: dict[str, float] = {}
        self.condemned: dict[str, float] = {}
        self.snapshots: list[str] = []
        self.saves: list[tuple[float, set[str], str]] = []
        self.decided: tuple[float, Sorting] | None = None
        self.variants = 0

    def begin_save(self) -> None:
        self.saves.append((self.now, set(self.condemned), ""))

    def send(self) -> None:
        if self.saves:
            began, avoided, _ = self.saves.pop(self.source.randrange(len(self.saves)))
            name = "content"
            if name in avoided:
                self.variants += 1
                name = f"variant {self.variants}"
            self.chunks.setdefault(name, self.now)
            self.saves.append((began, avoided, name))

    def publish(self) -> None:
        if self.saves:
            began, _, name = self.saves.pop(self.source.randrange(len(self.saves)))
            if name and self.now - began <= longest_save_s(self.grace_s):
                self.snapshots.append(name)

    def delete(self) -> None:
        if self.snapshots:
            self.snapshots.pop(self.source.randrange(len(self.snapshots)))

    def look(self) -> None:
        if self.decided is None:
            sorting = Sorting(dict(self.condemned), self.now, self.grace_s)
            for name, since in self.chunks.items():
                sorting.see(name, needed=name in self.snapshots, age_s=self.now - since)
            self.decided = (self.now, sorting)

    def sweep(self) -> None:
        if self.decided is not None:
            looked, sorting = self.decided
            self.decided = None
            if self.now - looked <= longest_save_s(self.grace_s):
                for name in sorting.delete:
                    del self.chunks[name]
                self.condemned = sorting.next_condemned

    def wait(self) -> None:
        self.now += self.source.choice((1.0, 30.0, 49.0, 101.0))


@pytest.mark.parametrize("seed", range(4))
def test_no_published_snapshot_ever_misses_a_chunk(seed: int) -> None:
    world = World(random.Random(seed))
    steps = (world.begin_save, world.send, world.publish, world.delete, world.look, world.sweep, world.wait)
    freed = 0
    for _ in range(100_000):
        before = len(world.chunks)
        world.source.choice(steps)()
        freed += max(0, before - len(world.chunks))
        assert set(world.snapshots) <= world.chunks.keys()
    assert freed > 100
