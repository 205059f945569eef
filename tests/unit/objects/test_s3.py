"""The same over S3, as a real server speaks it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.s3_server import ACCESS_KEY, BUCKET, REGION, SECRET, S3Server, s3_server
from tests.unit.objects.conftest import KEY, NewFile, snapshot
from tests.unit.objects.test_artifacts import HERE, artifact
from tests.unit.objects.trees import build_odd_tree, contents

from sandlot.domain.errors import StorageProblem
from sandlot.domain.paging import place_of
from sandlot.domain.workspaces.exports import Mark
from sandlot.domain.workspaces.objects.locations import parse_location
from sandlot.testing.directory_suite.redis_server import free_port
from sandlot.worker.workspaces.objects.artifacts.storage import SavedArtifacts
from sandlot.worker.workspaces.objects.options import ObjectOptions
from sandlot.worker.workspaces.objects.storage import ObjectStorage

Folders = Callable[[str], Path]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[S3Server]:
    with s3_server(tmp_path / "s3") as running:
        yield running


def storage_at(endpoint: str, **options: object) -> ObjectStorage:
    given = {
        "region": REGION,
        "access_key_id": ACCESS_KEY,
        "secret_access_key": SECRET,
        "key": KEY,
        **options,
    }
    location = parse_location(f"s3://{BUCKET}/some/prefix")
    return ObjectStorage(ObjectOptions(location, endpoint=endpoint, **given))  # type: ignore[arg-type]


async def test_a_tree_over_s3(server: S3Server, folders: Folders) -> None:
    source, into = folders("source"), folders("into")
    build_odd_tree(source)
    storage, other = storage_at(server.endpoint), storage_at(server.endpoint, grace_s=0.0)
    try:
        await storage.open()
        saved = await storage.save("tenant", snapshot(1), source, b"meta")
        assert saved.bytes_sent > 3_000_000
        (source / "more").write_bytes(random.Random(1).randbytes(500_000))
        again = await storage.save("tenant", snapshot(2), source, base=snapshot(1))
        assert again.bytes_sent < 600_000
        assert {path.name for path in server.files.iterdir()} == {"some"}
        # Another worker: it knows the place and the key, no more.
        await other.open()
        assert await other.list() == [("tenant", snapshot(1)), ("tenant", snapshot(2))]
        assert (await other.load("tenant", snapshot(2), into)).bytes_total == again.bytes_total
        assert contents(into) == contents(source)
        session, mark = "ses_" + "1" * 32, Mark(1, 1.0, snapshot(2))
        await storage.mark("tenant", session, mark)
        assert await other.marks("tenant", session) == [mark]
        await other.unmark("tenant", session, mark)
        assert await storage.marks("tenant", session) == []
        await other.delete("tenant", snapshot(2))
        await other.delete("tenant", snapshot(2))
        assert (await other.collect()).condemned > 0
        assert (await other.collect()).freed_bytes > 500_000
        assert await other.list("tenant") == [("tenant", snapshot(1))]
    finally:
        await storage.close()
        await other.close()


async def test_a_wrong_secret_and_a_missing_server_say_so(server: S3Server) -> None:
    for storage in (
        storage_at(server.endpoint, secret_access_key="another-secret"),
        storage_at(f"http://127.0.0.1:{free_port()}"),
    ):
        with pytest.raises(StorageProblem, match="SANDLOT_OBJECTS_URL") as caught:
            await asyncio.wait_for(storage.open(), 150)
        await storage.close()
        assert "another-secret" not in str(caught.value)
        assert caught.value.retryable


async def test_a_flipped_bit_over_s3(server: S3Server, folders: Folders) -> None:
    source, into = folders("source"), folders("into")
    (source / "file").write_bytes(random.Random(2).randbytes(200_000))
    storage = storage_at(server.endpoint)
    try:
        await storage.open()
        await storage.save("bits", snapshot(5), source)
        [(tenant, _)] = [(path.parents[1], path) for path in server.files.rglob(f"*/{snapshot(5)}")]
        for path in tenant.rglob("chunks/*/*"):
            broken = bytearray(path.read_bytes())
            broken[len(broken) // 2] ^= 4
            path.write_bytes(broken)
        with pytest.raises(StorageProblem, match="damaged"):
            await storage.load("bits", snapshot(5), into)
        assert list(into.iterdir()) == []
    finally:
        await storage.close()


async def test_artifacts_over_s3(server: S3Server, file: NewFile) -> None:
    content = random.Random(3).randbytes(3_000_000)
    mine, theirs = artifact(1, content, thread="t1"), artifact(2, content, session=2)
    first, other, hasty = (
        storage_at(server.endpoint),
        storage_at(server.endpoint),
        storage_at(server.endpoint, grace_s=0.0),
    )
    try:
        saved, elsewhere = SavedArtifacts(first), SavedArtifacts(other)
        assert await saved.save(mine, file(content)) > 3_000_000
        assert await saved.save(theirs, file(content)) < 3000
        # Another worker: it knows the place and the key, no more.
        assert await elsewhere.find("tenant", mine.id) == mine
        assert b"".join([piece async for piece in elsewhere.read("tenant", mine.id)]) == content
        assert await elsewhere.find("stranger", mine.id) is None
        assert await elsewhere.page("tenant", None, None, "", 1, ()) == [mine]
        assert await elsewhere.page("tenant", None, None, place_of(mine), 9, ()) == [theirs]
        assert await elsewhere.page("tenant", None, "t1", "", 9, ()) == [mine]
        assert await elsewhere.page("tenant", None, None, "", 9, {HERE}) == []
        await elsewhere.delete_for("tenant", mine.id)
        assert await saved.deleted_elsewhere(HERE) == [("tenant", mine.id)]
        await saved.heard_of_deletion(mine.id)
        assert await saved.deleted_elsewhere(HERE) == []
        await hasty.open()
        assert (await hasty.collect("tenant")).condemned == 0, "the other one needs the same chunks"
        [chunk, *_] = server.files.rglob("chunks/*/*")
        broken = bytearray(chunk.read_bytes())
        broken[len(broken) // 2] ^= 4
        chunk.write_bytes(broken)
        with pytest.raises(StorageProblem, match="damaged"):
            [piece async for piece in saved.read("tenant", theirs.id)]
    finally:
        for storage in (first, other, hasty):
            await storage.close()
