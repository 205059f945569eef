"""Backups of a storage that is mounted, in the folders of a default installation."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
import pytest_asyncio

from sandlot.domain.errors import InvalidRequest
from sandlot.providers.docker.workspaces.btrfs import subvolumes
from sandlot.providers.docker.workspaces.choosing import StoreMemory
from sandlot.providers.docker.workspaces.storage import loop_file
from sandlot.providers.docker.workspaces.storage.loop_file import LoopFile
from sandlot.wiring.backups.restoring import restore
from sandlot.wiring.backups.taking import take
from sandlot.worker.store.database import Store
from tests.docker.storage.conftest import SMALL, Place

pytestmark = pytest.mark.docker


def ignore(_: str) -> None:
    """What the commands say on their way."""


def set_up(storage: LoopFile) -> None:
    loop_file.set_up(storage, SMALL, say=ignore)


@pytest_asyncio.fixture
async def data_dir(place: Place) -> Path:
    """It has the storage in it, with one workspace."""
    store = Store(place.folder / "worker.db", "worker-of-the-tests")
    await store.open()
    await store.close()
    set_up(place.storage)
    StoreMemory(place.folder).note(place.storage.folder)
    (place.storage.folder / "file").write_text("content")
    return place.folder


def taken(data_dir: Path, folder: Path, *, with_workspaces: bool = True) -> set[str]:
    take(data_dir, folder, with_workspaces=with_workspaces, say=ignore)
    return {path.name for path in folder.rglob("*") if path.is_file()}


async def test_it_comes_back(place: Place, data_dir: Path, tmp_path: Path) -> None:
    records = {"backup.json", "worker.db", "workspaces-on-btrfs"}
    assert taken(data_dir, tmp_path / "without", with_workspaces=False) == records
    assert taken(data_dir, tmp_path / "backup") == {*records, "storage.btrfs"}
    (place.storage.folder / "file").write_text("later")
    place.unmount_all()
    place.storage.file.unlink()
    restore(tmp_path / "backup", tmp_path / "again", ignore)
    set_up(place.storage)
    assert (place.storage.folder / "file").read_text() == "content"


async def test_a_damaged_copy_is_not_restored(data_dir: Path, tmp_path: Path) -> None:
    taken(data_dir, tmp_path / "backup")
    with (tmp_path / "backup/storage.btrfs").open("r+b") as file:
        file.seek(os.lseek(file.fileno(), 0, os.SEEK_DATA))
        (byte,) = os.pread(file.fileno(), 1, file.tell())
        file.write(bytes([byte ^ 1]))
    with pytest.raises(InvalidRequest, match=r"storage\.btrfs is damaged"):
        restore(tmp_path / "backup", tmp_path / "again", ignore)
    assert not (tmp_path / "again").exists()


async def test_no_backup_is_put_on_the_storage(
    place: Place, data_dir: Path, tmp_path: Path, short_tmp: Path
) -> None:
    """Neither by a link, nor by another mount, whose paths and device numbers tell nothing."""
    with subvolumes.opened(place.storage.folder) as storage:
        subvolumes.create(storage, "inside")
    (tmp_path / "link").symlink_to(place.storage.folder)
    (short_tmp / "mount").mkdir()
    with pytest.raises(InvalidRequest, match="which is backed up"):
        taken(data_dir, tmp_path / "link" / "backup")
    inside = str(place.storage.folder / "inside")
    subprocess.run(["mount", "--bind", inside, str(short_tmp / "mount")], check=True)
    try:
        with pytest.raises(InvalidRequest, match="on the file system of"):
            taken(data_dir, short_tmp / "mount" / "new" / "backup")
    finally:
        subprocess.run(["umount", str(short_tmp / "mount")], check=True)
