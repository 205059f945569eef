"""Artifacts in object storage: saved, found by any worker, and deleted with what only they needed."""

from __future__ import annotations

import hashlib
import random
from pathlib import Path

import pytest
from tests.unit.objects.conftest import NewFile, Opener, objects, snapshot

from sandlot.domain.artifacts.artifact import Artifact, media_type_of
from sandlot.domain.errors import StorageProblem
from sandlot.domain.paging import place_of
from sandlot.worker.workspaces.objects.artifacts.recent import Recent
from sandlot.worker.workspaces.objects.artifacts.storage import SavedArtifacts

HERE, THERE = "0123abcd", "4567abcd"
MIB = 1024 * 1024


def artifact(
    number: int,
    content: bytes,
    *,
    tenant: str = "tenant",
    tag: str = HERE,
    session: int = 1,
    thread: str = "",
) -> Artifact:
    path = f"out/{number}.txt"
    return Artifact(
        id=f"art_{tag}{number:024x}",
        session_id=f"ses_{session:032x}",
        created_at=1_700_000_000.0 + number,
        path=path,
        size=len(content),
        sha256=hashlib.sha256(content).hexdigest(),
        media_type=media_type_of(path),
        tenant=tenant,
        thread=thread or None,
    )


async def content_of(saved: SavedArtifacts, one: Artifact) -> bytes:
    return b"".join([piece async for piece in saved.read(one.tenant, one.id)])


async def read_into(pieces: list[bytes], saved: SavedArtifacts, one: Artifact) -> None:
    async for piece in saved.read(one.tenant, one.id):
        pieces.append(piece)


async def page(saved: SavedArtifacts, **how: object) -> list[str]:
    given = {"session_id": None, "thread": None, "after": "", "limit": 100, "without": (), **how}
    return [one.id for one in await saved.page("tenant", **given)]  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [0, 1, 1000, 3 * MIB + 7])
@pytest.mark.parametrize("key", [None, bytes(32)])
async def test_another_worker_reads_what_was_saved(
    opened: Opener, file: NewFile, size: int, key: bytes | None
) -> None:
    content = random.Random(size).randbytes(size)
    one = artifact(1, content, thread="a thread")
    sent = await SavedArtifacts(await opened(key)).save(one, file(content))
    assert sent > size
    other = SavedArtifacts(await opened(key))
    assert await other.find("tenant", one.id) == one
    assert await content_of(other, one) == content
    assert await page(other) == [one.id]


async def test_equal_contents_are_sent_once_and_tenants_share_nothing(opened: Opener, file: NewFile) -> None:
    saved, content = SavedArtifacts(await opened()), random.Random(1).randbytes(2 * MIB)
    first, second = artifact(1, content), artifact(2, content)
    theirs = artifact(1, content, tenant="other")
    assert await saved.save(first, file(content)) > 2 * MIB
    assert await saved.save(second, file(content)) < 2000
    assert await saved.save(theirs, file(content)) > 2 * MIB
    assert await saved.find("other", second.id) is None
    await saved.delete_for("other", second.id)
    assert await saved.find("tenant", second.id) == second


async def test_what_a_snapshot_has_is_not_sent_again(opened: Opener, tree: Path, file: NewFile) -> None:
    storage = await opened()
    content = random.Random(2).randbytes(2 * MIB)
    (tree / "plot").write_bytes(content)
    await storage.save("tenant", snapshot(1), tree)
    assert await SavedArtifacts(storage).save(artifact(1, content), file(content)) < 2000


async def test_pages_by_session_thread_and_worker(
    opened: Opener, file: NewFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = SavedArtifacts(await opened())
    all_of_them = [
        artifact(number, b"x", tag=(HERE, THERE)[number % 2], session=number // 3, thread=f"t{number % 3}")
        for number in range(9)
    ]
    for one in reversed(all_of_them):
        await saved.save(one, file(b"x"))
    ids = [one.id for one in all_of_them]
    other = SavedArtifacts(await opened())
    assert await page(other) == ids
    assert await page(other, limit=4) == ids[:4]
    assert await page(other, limit=4, after=place_of(all_of_them[3])) == ids[4:8]
    assert await page(other, session_id=f"ses_{1:032x}") == ids[3:6]
    assert await page(other, thread="t1") == ids[1::3]
    assert await page(other, without={HERE}) == ids[1::2]
    assert await page(other, without={HERE, THERE}) == []
    await other.delete(all_of_them[2])
    assert await page(other, limit=3) == [ids[0], ids[1], ids[3]]
    # This one has read its list a moment ago; nobody told it of the deletion.
    monkeypatch.setattr(other._index, "_artifacts", Recent(10, 0))
    await saved.delete(all_of_them[0])
    assert await page(other, limit=3) == [ids[1], ids[3], ids[4]]


async def test_the_storage_does_not_show_names(opened: Opener, store: Path, file: NewFile) -> None:
    saved = SavedArtifacts(await opened())
    await saved.save(
        artifact(1, b"secret content", tenant="acme", thread="thread-of-bob"), file(b"secret content")
    )
    for path, content in objects(store).items():
        for word in (b"acme", b"thread-of-bob", b"secret", b"out/1"):
            assert word not in path.encode()
            assert word not in content


@pytest.mark.parametrize("key", [None, bytes(32)])
async def test_a_flipped_bit_is_refused(
    opened: Opener, store: Path, file: NewFile, key: bytes | None
) -> None:
    saved, content = SavedArtifacts(await opened(key)), random.Random(3).randbytes(2 * MIB)
    one = artifact(1, content)
    await saved.save(one, file(content))
    paths = [
        path
        for path in store.rglob("*")
        if path.is_file() and ("/chunks/" in str(path) or path.name == one.id)
    ]
    assert len(paths) > 2
    for path in paths:
        good = path.read_bytes()
        for at in (0, len(good) // 2, len(good) - 1):
            bad = bytearray(good)
            bad[at] ^= 1
            path.write_bytes(bad)
            pieces: list[bytes] = []
            with pytest.raises(StorageProblem, match="damaged"):
                await read_into(pieces, saved, one)
            assert sum(map(len, pieces)) < len(content), "nobody takes it for the whole"
        path.write_bytes(good)
    assert await content_of(saved, one) == content


async def test_a_record_in_the_place_of_another_is_refused(
    opened: Opener, store: Path, file: NewFile
) -> None:
    saved = SavedArtifacts(await opened())
    one, two = artifact(1, b"one"), artifact(2, b"two")
    await saved.save(one, file(b"one"))
    await saved.save(two, file(b"two"))
    [first], [second] = store.rglob(one.id), store.rglob(two.id)
    first.write_bytes(second.read_bytes())
    with pytest.raises(StorageProblem, match="damaged"):
        await saved.find("tenant", one.id)
    # A list leaves it out, and has the others.
    assert await page(saved) == [two.id]


async def test_a_content_that_is_damaged_on_the_workers_disk_is_not_saved(
    opened: Opener, store: Path, file: NewFile
) -> None:
    saved, one = SavedArtifacts(await opened()), artifact(1, b"good")
    with pytest.raises(StorageProblem, match="damaged on the worker's disk"):
        await saved.save(one, file(b"evil"))
    assert await saved.find("tenant", one.id) is None


async def test_collections_spare_what_artifacts_need(opened: Opener, store: Path, file: NewFile) -> None:
    saved, hasty = SavedArtifacts(await opened()), await opened(grace_s=0.0)
    content = random.Random(4).randbytes(2 * MIB)
    one, two = artifact(1, content), artifact(2, content[:MIB])
    await saved.save(one, file(content))
    await saved.save(two, file(content[:MIB]))
    for _ in range(2):
        assert (await hasty.collect()).condemned == 0
    await saved.delete(one)
    assert (await hasty.collect()).condemned > 0
    assert (await hasty.collect()).deleted > 0
    assert await content_of(saved, two) == content[:MIB]
    await saved.delete(two)
    for _ in range(2):
        await hasty.collect()
    assert not [
        path for path in objects(store) if "/chunks/" in path or "/kept/" in path or "/artifacts/" in path
    ]


async def test_a_collection_that_cannot_read_a_record_deletes_nothing(
    opened: Opener, store: Path, file: NewFile
) -> None:
    saved, hasty = SavedArtifacts(await opened()), await opened(grace_s=0.0)
    one, two = artifact(1, b"one"), artifact(2, b"two")
    await saved.save(one, file(b"one"))
    await saved.save(two, file(b"two"))
    [path] = store.rglob(one.id)
    good = path.read_bytes()
    await saved.delete(two)
    path.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    for _ in range(3):
        assert (await hasty.collect()).deleted == 0
    path.write_bytes(good)
    assert await content_of(saved, one) == b"one"


async def test_old_artifacts_of_workers_that_are_gone_go(opened: Opener, store: Path, file: NewFile) -> None:
    saved, hasty = SavedArtifacts(await opened()), await opened(grace_s=0.0)
    old, new = artifact(1, b"old"), artifact(100, b"new")
    await saved.save(old, file(b"old"))
    await saved.save(new, file(b"new"))
    await hasty.collect(artifacts_before=old.created_at)
    assert await saved.find("tenant", old.id) == old
    await hasty.collect(artifacts_before=old.created_at + 50)
    assert await saved.find("tenant", old.id) is None
    assert await page(SavedArtifacts(await opened())) == [new.id]


async def test_a_deletion_elsewhere_is_noted_for_the_worker(opened: Opener, file: NewFile) -> None:
    saved, one = SavedArtifacts(await opened()), artifact(1, b"one", tenant="acme")
    await saved.save(one, file(b"one"))
    assert await saved.deleted_elsewhere(HERE) == []
    for _ in range(2):
        await saved.delete_for("acme", one.id)
    assert await saved.find("acme", one.id) is None
    assert await saved.deleted_elsewhere(THERE) == []
    for name in ("junk", artifact(2, b"", tag=THERE).id):
        path = f"deleted/{HERE}/{name}"
        saved.objects.bucket.put(path, saved.objects.seal_root(path, b"acme"))
    assert await saved.deleted_elsewhere(HERE) == [("acme", one.id)]
    await saved.heard_of_deletion(one.id)
    assert await saved.deleted_elsewhere(HERE) == []
