"""A store that somebody else writes to: whatever a manifest says, nothing is made outside of the folder."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zstandard
from tests.unit.objects.conftest import Opener, snapshot

from sandlot.domain.errors import SandlotError, StorageProblem
from sandlot.domain.workspaces.objects.limits import MAX_OBJECT_BYTES
from sandlot.worker.workspaces.objects.bucket import sealing
from sandlot.worker.workspaces.objects.bucket.chunks import ChunkStore, Sending
from sandlot.worker.workspaces.objects.manifests.records import Head, Part, encoder
from sandlot.worker.workspaces.objects.storage import ObjectStorage

Folders = Callable[[str], Path]

ROOT = [1, b"", 0o755, 0, 0]
END = [2]


def file(name: bytes, size: int = 5, pieces: list[int] | None = None, **more: Any) -> list[Any]:
    given = [3, name, 0o644, 0, 0, size, 7, 0, [0, 0, 5] if pieces is None else pieces]
    return [*given, more.get("linked", False), False, more.get("more", False), more.get("attributes", [])]


def symlink(name: bytes, target: bytes) -> list[Any]:
    return [5, name, target, 0, 0, 8, False]


GOOD = [ROOT, file(b"a"), symlink(b"b", b"/etc"), [1, b"c", 0o755, 0, 0], file(b"d"), END, END]
BAD: dict[str, list[Any]] = {
    "up": [ROOT, file(b".."), END],
    "into up": [ROOT, [1, b"..", 0o755, 0, 0], file(b"x"), END, END],
    "here": [ROOT, [1, b".", 0o755, 0, 0], END, END],
    "a path": [ROOT, file(b"a/b"), END],
    "absolute": [ROOT, file(b"/tmp/sandlot-escaped"), END],
    "nothing": [ROOT, file(b""), END],
    "a zero": [ROOT, file(b"a\0b"), END],
    "a long name": [ROOT, file(b"n" * 256), END],
    "twice": [ROOT, file(b"a"), file(b"a"), END],
    "through a link": [ROOT, symlink(b"a", b"/tmp"), [1, b"a", 0o755, 0, 0], file(b"x"), END, END],
    "over a link": [ROOT, symlink(b"a", b"/tmp/sandlot-escaped"), file(b"a"), END],
    "out of order": [ROOT, file(b"b"), file(b"a"), END],
    "outside": [ROOT, END, file(b"a")],
    "before": [file(b"a"), ROOT, END],
    "two roots": [ROOT, END, ROOT, END],
    "a named root": [[1, b"r", 0o755, 0, 0], END],
    "no end": [ROOT, file(b"a")],
    "too many ends": [ROOT, END, END],
    "nothing at all": [],
    "setuid": [ROOT, [3, b"a", 0o4755, 0, 0, 5, 7, 0, [0, 0, 5]], END],
    "no chunk": [ROOT, file(b"a", pieces=[1, 0, 5]), END],
    "beyond its chunk": [ROOT, file(b"a", pieces=[0, 3, 5]), END],
    "before its chunk": [ROOT, file(b"a", pieces=[0, -1, 5]), END],
    "a negative length": [ROOT, file(b"a", pieces=[0, 0, -1]), END],
    "half a piece": [ROOT, file(b"a", pieces=[0, 0]), END],
    "too short": [ROOT, file(b"a", size=6), END],
    "too long": [ROOT, file(b"a", size=4), END],
    "an enormous hole": [ROOT, file(b"a", size=2**63 - 1, pieces=[-1, 0, 2**63 - 1]), END],
    "pieces of nothing": [ROOT, [4, [0, 0, 5], False], END],
    "missing pieces": [ROOT, file(b"a", more=True), END],
    "a link to nothing": [ROOT, [7, b"a", 7], END],
    "a link to what is not linked": [ROOT, file(b"a"), [7, b"b", 7], END],
    "a link above": [ROOT, file(b"a", linked=True), [7, b"../b", 7], END],
    "rights": [ROOT, file(b"a", attributes=[[b"security.capability", b"\1\0\0\2" + bytes(16)]]), END],
    "no target": [ROOT, symlink(b"a", b""), END],
    "a zero in a target": [ROOT, symlink(b"a", b"b\0c"), END],
    "a device": [ROOT, [8, b"null", 1, 3], END],
    "a fraction": [ROOT, [1, b"c", 0o755, 0, 10**9], END, END],
    "a text": [ROOT, [1, "c", 0o755, 0, 0], END, END],
    "no time": [ROOT, [1, b"c", 0o755, 2**63, 0], END, END],
}


async def forged(storage: ObjectStorage, records: list[Any]) -> None:
    """Publish a manifest with these records, as somebody who has the key can."""
    store: ChunkStore = storage.store("tenant")
    sending = Sending(store, {})
    content = sending.name(b"hello")
    sending.send(content, b"hello")
    encoded = msgspec.msgpack.encode([[content], records])
    part = sending.name(encoded, part=True)
    sending.send(part, encoded)
    head = Head(1, "tenant", snapshot(1), 0.0, b"", [part], 1, 1, 2**62, 0, 0)
    store.write_object(f"snapshots/{snapshot(1)}", encoder.encode(head))


async def test_a_forged_manifest_without_faults_is_loaded(opened: Opener, folders: Folders) -> None:
    """So the others fail for their faults alone."""
    storage, into = await opened(), folders("into")
    await forged(storage, GOOD)
    await storage.load("tenant", snapshot(1), into)
    assert (into / "c" / "d").read_text() == "hello"
    assert os.readlink(into / "b") == "/etc"


@pytest.mark.parametrize("what", BAD)
async def test_a_forged_manifest_makes_nothing(opened: Opener, folders: Folders, what: str) -> None:
    storage, parent = await opened(), folders("parent")
    into = parent / "into"
    into.mkdir()
    await forged(storage, BAD[what])
    with pytest.raises(SandlotError):
        await storage.load("tenant", snapshot(1), into)
    assert os.listdir(into) == []
    assert os.listdir(parent) == ["into"]
    assert not Path("/tmp/sandlot-escaped").exists()


async def test_an_object_cannot_grow_without_end(opened: Opener, folders: Folders, store: Path) -> None:
    """A frame of a few bytes may claim to hold, or hold, any amount."""
    bomb = zstandard.ZstdCompressor().compress(bytes(200 << 20))
    assert len(bomb) < 50_000
    for length in (200 << 20, 2**32 - 1, 1000):
        header = struct.pack(">4sBI", b"SLO1", 2, length)
        sealed = header + bomb + sealing._checksum(bytes(32), header, bomb, "place")
        with pytest.raises(StorageProblem, match="damaged"):
            sealing.unseal(sealed, bytes(32), "place", encrypted=False)
    storage = await opened()
    await forged(storage, GOOD)
    [head] = store.rglob("snp_*")
    with head.open("r+b") as large:
        large.truncate(MAX_OBJECT_BYTES + 1)
    with pytest.raises(StorageProblem, match="too large"):
        await storage.load("tenant", snapshot(1), folders("into"))


def test_a_part_has_bounded_lists() -> None:
    many = msgspec.msgpack.encode([[], [[3, b"a", 0, 0, 0, 0, 0, 0, [0] * 3001]]])
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(many, type=Part)
