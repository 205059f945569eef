"""A flipped bit anywhere is found and refused, and nothing half loaded stays."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.objects.conftest import KEY, Opener, objects, snapshot
from tests.unit.objects.trees import contents

from sandlot.domain.errors import NotFound, SandlotError, StorageProblem
from sandlot.worker.workspaces.objects.bucket.sealing import seal, unseal

Folders = Callable[[str], Path]


@given(
    content=st.binary(max_size=300) | st.binary(min_size=1, max_size=4).map(lambda piece: piece * 100),
    encrypt=st.booleans(),
    data=st.data(),
)
def test_every_bit_of_an_object_counts(content: bytes, encrypt: bool, data: st.DataObject) -> None:
    sealed = seal(content, KEY, "a/place", encrypt=encrypt)
    assert unseal(sealed, KEY, "a/place", encrypted=encrypt) == content
    bit = data.draw(st.integers(0, len(sealed) * 8 - 1))
    flipped = bytearray(sealed)
    flipped[bit // 8] ^= 1 << bit % 8
    shortened = sealed[: data.draw(st.integers(0, len(sealed) - 1))]
    for wrong in (bytes(flipped), shortened, sealed + b"\0"):
        with pytest.raises(StorageProblem, match="damaged"):
            unseal(wrong, KEY, "a/place", encrypted=encrypt)
    for key, place, encrypted in (
        (bytes(32), "a/place", encrypt),
        (KEY, "another/place", encrypt),
        (KEY, "a/place", not encrypt),
    ):
        with pytest.raises(StorageProblem, match="damaged"):
            unseal(sealed, key, place, encrypted=encrypted)


def test_equal_content_is_never_encrypted_alike() -> None:
    assert len({seal(b"same", KEY, "place", encrypt=True) for _ in range(100)}) == 100


@pytest.mark.parametrize("key", [None, KEY], ids=["plain", "encrypted"])
async def test_a_flipped_bit_in_any_object_is_refused(
    opened: Opener, tree: Path, store: Path, folders: Folders, key: bytes | None
) -> None:
    storage, into = await opened(key), folders("into")
    await storage.save("tenant", snapshot(1), tree)
    needed = [path for path in objects(store) if "/chunks/" in path or "/snapshots/" in path]
    assert len(needed) >= 4, needed
    for path in needed:
        whole = (store / path).read_bytes()
        step = max(1, len(whole) // 40)
        for place in [*range(min(len(whole), 64)), *range(64, len(whole), step), len(whole) - 1]:
            flipped = bytearray(whole)
            flipped[place] ^= 1 << place % 8
            (store / path).write_bytes(flipped)
            with pytest.raises(StorageProblem, match="damaged") as caught:
                await storage.load("tenant", snapshot(1), into)
            assert caught.value.details == {"damaged": True}
            assert os.listdir(into) == []
        (store / path).write_bytes(whole)
    await storage.load("tenant", snapshot(1), into)
    assert contents(into) == contents(tree)


async def test_missing_empty_and_exchanged_objects_are_refused(
    opened: Opener, tree: Path, store: Path, folders: Folders
) -> None:
    storage, into = await opened(), folders("into")
    await storage.save("tenant", snapshot(1), tree)
    (tree / "large").write_bytes(b"another")
    await storage.save("tenant", snapshot(2), tree)
    shutil.copytree(store, store.parent / "good")
    good = store.parent / "good"
    chunks = [path for path in objects(store) if "/chunks/" in path]
    for path, other in zip(chunks, chunks[1:] + chunks[:1], strict=True):
        for change in ("missing", "empty", "exchanged"):
            if change == "missing":
                (store / path).unlink()
            elif change == "empty":
                (store / path).write_bytes(b"")
            else:
                shutil.copy(good / other, store / path)
            outcomes = []
            for number in (1, 2):
                try:
                    await storage.load("tenant", snapshot(number), into)
                    outcomes.append("loaded")
                    shutil.rmtree(into)
                    into.mkdir()
                except StorageProblem as error:
                    outcomes.append("damaged" if error.details.get("damaged") else error.message)
                    assert os.listdir(into) == []
            assert "damaged" in outcomes, (path, change)
            assert set(outcomes) <= {"damaged", "loaded"}
        shutil.copy(good / path, store / path)
    heads = [path for path in objects(store) if "/snapshots/" in path]
    shutil.copy(good / heads[0], store / heads[1])
    with pytest.raises(StorageProblem, match="damaged"):
        await storage.load("tenant", snapshot(2), into)
    (store / heads[1]).unlink()
    with pytest.raises(NotFound):
        await storage.load("tenant", snapshot(2), into)


async def test_a_save_after_damage_sends_everything_again(
    opened: Opener, tree: Path, store: Path, folders: Folders
) -> None:
    """Else the next snapshots would rely on damaged chunks, too."""
    storage, into = await opened(), folders("into")
    await storage.save("tenant", snapshot(1), tree)
    for path in objects(store):
        if "/chunks/" in path:
            broken = bytearray((store / path).read_bytes())
            broken[-1] ^= 1
            (store / path).write_bytes(broken)
    saved = await storage.save("tenant", snapshot(2), tree, base=snapshot(1))
    assert saved.files_read == saved.files
    await storage.load("tenant", snapshot(2), into)
    assert contents(into) == contents(tree)


async def test_a_base_that_is_gone_or_broken_costs_only_time(opened: Opener, tree: Path, store: Path) -> None:
    storage = await opened()
    await storage.save("tenant", snapshot(1), tree, base=snapshot(9))
    [head] = [path for path in objects(store) if "/snapshots/" in path]
    (store / head).write_bytes(b"broken")
    saved = await storage.save("tenant", snapshot(2), tree, base=snapshot(1))
    assert saved.files_read == saved.files
    with pytest.raises(SandlotError):
        await storage.describe("tenant", snapshot(1))
