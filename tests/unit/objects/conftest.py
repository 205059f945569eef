"""Object storages in folders of their own."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.unit.objects.trees import fill

from sandlot.domain.workspaces.objects.locations import parse_location
from sandlot.providers.trees.place import empty
from sandlot.worker.workspaces.objects.options import ObjectOptions
from sandlot.worker.workspaces.objects.storage import ObjectStorage

KEY = bytes(range(32))


def snapshot(number: int) -> str:
    return f"snp_{number:032x}"


@pytest.fixture
def folders(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """New empty folders. They are removed even if their trees are too odd for pytest."""
    made = []

    def new(name: str) -> Path:
        path = tmp_path / name
        path.mkdir()
        made.append(path)
        return path

    yield new
    for path in made:
        empty(path)


NewFile = Callable[[bytes], Path]
Opener = Callable[..., Awaitable[ObjectStorage]]


@pytest.fixture
async def opened(tmp_path: Path) -> AsyncIterator[Opener]:
    """Opens the storage in ``tmp_path / "store"``, as a worker does."""
    storages: list[ObjectStorage] = []

    async def open_(key: bytes | None = KEY, clock: Any = None, **options: Any) -> ObjectStorage:
        location = parse_location(f"file://{tmp_path}/store")
        given = replace(ObjectOptions(location, key=key), **options)
        storage = ObjectStorage(given, clock) if clock else ObjectStorage(given)
        storages.append(storage)
        await storage.open()
        return storage

    yield open_
    for storage in storages:
        await storage.close()


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


def objects(store: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(store)): path.read_bytes() for path in sorted(store.rglob("*")) if path.is_file()
    }


@pytest.fixture
def tree(folders: Callable[[str], Path]) -> Path:
    root = folders("tree")
    fill(root, folders=3, files=4, size=1000)
    (root / "large").write_bytes(b"".join(bytes([n % 251]) * 997 for n in range(1500)))
    (root / "link").symlink_to("large")
    return root


@pytest.fixture
def file(tmp_path: Path) -> NewFile:
    """New files with given contents."""

    def new(content: bytes) -> Path:
        path = tmp_path / hashlib.sha256(content).hexdigest()
        path.write_bytes(content)
        return path

    return new
