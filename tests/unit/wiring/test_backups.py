"""What a backup refuses, and that a damaged one is never restored. tests/faults/test_backup.py has whole ones."""

from __future__ import annotations

import itertools
import json
import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from sandlot.config.data_folder import provider_dir
from sandlot.domain.capacity.limits import MIB
from sandlot.domain.errors import Conflict, InvalidRequest, NotFound, StorageProblem
from sandlot.providers.data_folder import locked
from sandlot.providers.docker.workspaces.choosing import StoreMemory
from sandlot.providers.docker.workspaces.storage.loop_file import LoopFile
from sandlot.wiring.backups.contents import RESTORING, STORAGE, digest_of_sparse
from sandlot.wiring.backups.restoring import restore
from sandlot.wiring.backups.taking import take
from sandlot.worker.store.database import Store, owner_of

OWNER = "worker-of-the-tests"


@pytest.fixture
async def data_dir(tmp_path: Path) -> Path:
    """What a stopped worker leaves, with one artifact, a cache, a socket's folder and its announcement."""
    folder = tmp_path / "data"
    store = Store(folder / "worker.db", OWNER)
    await store.open()
    await store.close()
    for name in (
        "artifacts/kept/one",
        "docker/s/one/secret",
        "packages/blobs/one",
        "local/worker.db",
        "server.json",
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("content")
    return folder


@pytest.fixture
def backup(data_dir: Path, tmp_path: Path) -> Path:
    take(data_dir, tmp_path / "backup", with_workspaces=True, say=ignore)
    return tmp_path / "backup"


def with_storage(backup: Path, parent: Path) -> LoopFile:
    """Give a backup the storage of a folder below this one: sparse, as the real ones are."""
    storage = LoopFile(parent / "storage")
    with (backup / STORAGE).open("wb") as file:
        for place in (0, 5 * MIB):
            file.seek(place)
            file.write(b"content")
        file.truncate(10 * MIB)
    digest = digest_of_sparse(backup / STORAGE)
    _change_list(backup, storage={"folder": str(storage.folder), "size": 10 * MIB, "digest": digest})
    return storage


def ignore(_: str) -> None:
    """What the command says on its way."""


def names_in(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_it_has_what_a_worker_must_remember(backup: Path, tmp_path: Path) -> None:
    assert names_in(backup) == {"backup.json", "data/worker.db", "data/artifacts/kept/one"}
    assert backup.stat().st_mode & 0o777 == 0o700
    restore(backup, tmp_path / "again", ignore)
    assert names_in(tmp_path / "again") == {"worker.db", "artifacts/kept/one", "docker/lock"}
    assert owner_of(tmp_path / "again/worker.db") == OWNER


def test_commits_in_the_log_of_a_killed_worker_are_in_it(data_dir: Path, tmp_path: Path) -> None:
    with closing(sqlite3.connect(data_dir / "worker.db", isolation_level=None)) as database:
        database.execute("PRAGMA wal_autocheckpoint = 0")
        database.execute("INSERT INTO sandboxes VALUES ('sbx_1', 'default', 'warm')")
        take(data_dir, tmp_path / "backup", with_workspaces=True, say=ignore)
    with closing(sqlite3.connect(tmp_path / "backup/data/worker.db")) as copy:
        assert copy.execute("SELECT id FROM sandboxes").fetchall() == [("sbx_1",)]


def test_a_running_worker_is_left_alone(data_dir: Path, tmp_path: Path) -> None:
    with locked(provider_dir(data_dir)), pytest.raises(Conflict, match="Stop it first"):
        take(data_dir, tmp_path / "backup", with_workspaces=True, say=ignore)
    assert not (tmp_path / "backup").exists()


def test_no_worker_has_been_there(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="--data-dir"):
        take(tmp_path, tmp_path / "backup", with_workspaces=True, say=ignore)


def test_no_backup_is_replaced_or_put_into_what_it_is_of(data_dir: Path, backup: Path) -> None:
    with pytest.raises(Conflict, match="exists already"):
        take(data_dir, backup, with_workspaces=True, say=ignore)
    with pytest.raises(InvalidRequest, match="Choose a folder elsewhere"):
        take(data_dir, data_dir / "backup", with_workspaces=True, say=ignore)


def test_storage_that_is_not_a_mounted_file(data_dir: Path, tmp_path: Path) -> None:
    (data_dir / "workspaces-on-btrfs").write_text(f"{tmp_path}/storage\n")
    with pytest.raises(InvalidRequest, match="--without-workspaces"):
        take(data_dir, tmp_path / "backup", with_workspaces=True, say=ignore)
    take(data_dir, tmp_path / "backup", with_workspaces=False, say=ignore)
    assert json.loads((tmp_path / "backup/backup.json").read_text())["storage"] is None


def test_a_damaged_database_leaves_no_backup(data_dir: Path, tmp_path: Path) -> None:
    (data_dir / "history.sqlite3").write_bytes(b"this is no database" * 300)
    with pytest.raises(StorageProblem, match=r"history\.sqlite3"):
        take(data_dir, tmp_path / "backup", with_workspaces=True, say=ignore)
    assert not (tmp_path / "backup").exists()
    assert not (tmp_path / "backup.part").exists()


def changed_content(backup: Path) -> None:
    (backup / "data/artifacts/kept/one").write_text("CONTENT")


def missing_file(backup: Path) -> None:
    (backup / "data/artifacts/kept/one").unlink()


def added_file(backup: Path) -> None:
    (backup / "data/more").write_text("content")


def missing_list(backup: Path) -> None:
    (backup / "backup.json").unlink()


def broken_list(backup: Path) -> None:
    (backup / "backup.json").write_text("{")


def missing_storage(backup: Path) -> None:
    with_storage(backup, backup)
    (backup / STORAGE).unlink()


def changed_storage(backup: Path) -> None:
    with_storage(backup, backup)
    with (backup / STORAGE).open("r+b") as file:
        file.seek(3 * MIB)
        file.write(b"x")


def cut_storage(backup: Path) -> None:
    """It ends with a hole, which no digest of what is in the file has."""
    with_storage(backup, backup)
    os.truncate(backup / STORAGE, 9 * MIB)


def later_format(backup: Path) -> None:
    _change_list(backup, format=2)


def _change_list(backup: Path, **fields: object) -> None:
    listed = json.loads((backup / "backup.json").read_text())
    (backup / "backup.json").write_text(json.dumps({**listed, **fields}))


@pytest.mark.parametrize(
    "damage",
    [
        changed_content,
        missing_file,
        added_file,
        missing_list,
        broken_list,
        missing_storage,
        changed_storage,
        cut_storage,
        later_format,
    ],
)
def test_a_damaged_backup_is_not_restored(
    damage: Callable[[Path], None], backup: Path, tmp_path: Path
) -> None:
    damage(backup)
    with pytest.raises(InvalidRequest):
        restore(backup, tmp_path / "again", ignore)
    assert not (tmp_path / "again").exists()


def test_a_restore_replaces_nothing(backup: Path, data_dir: Path) -> None:
    with pytest.raises(Conflict, match="nothing is replaced"):
        restore(backup, data_dir, ignore)


@pytest.mark.parametrize("noted", [True, False])
@pytest.mark.parametrize("linked", [True, False])
def test_a_storage_in_the_data_folder_is_never_copied_with_it(
    noted: bool, linked: bool, data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That is its place by default. Its file is torn while it is mounted, and sandboxes write what is in it."""
    storage = LoopFile(data_dir / "storage")
    if noted:
        StoreMemory(data_dir).note(storage.folder)
    else:
        monkeypatch.setenv("SANDLOT_STORAGE_DIR", str(storage.folder))
    for file in (storage.file, storage.part):
        file.touch()
        os.truncate(file, 1024 * MIB)
    workspace = storage.folder / "owner/workspaces/one"
    workspace.mkdir(parents=True)
    (workspace / "hostile.db").write_bytes(b"this is no database" * 300)
    if linked:
        (tmp_path / "link").symlink_to(data_dir)
    take(tmp_path / "link" if linked else data_dir, tmp_path / "backup", with_workspaces=False, say=ignore)
    note = {"data/workspaces-on-btrfs"} if noted else set()
    assert (
        names_in(tmp_path / "backup") == {"backup.json", "data/worker.db", "data/artifacts/kept/one"} | note
    )


def test_a_link_that_leads_into_what_is_backed_up(data_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(data_dir)
    with pytest.raises(InvalidRequest, match="Choose a folder elsewhere"):
        take(data_dir, tmp_path / "link" / "backup", with_workspaces=True, say=ignore)
    with pytest.raises(InvalidRequest, match="Choose a folder elsewhere"):
        take(tmp_path / "link", data_dir / "backup", with_workspaces=True, say=ignore)


class Synced:
    """What was on the disk for certain, and when: ``dies_at`` a call, as a machine can."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, dies_at: int | None = None) -> None:
        self.calls: list[tuple[str, set[str]]] = []
        self._fsync, self._dies_at = os.fsync, dies_at
        self.watched: Callable[[], set[str]] = set
        monkeypatch.setattr(os, "fsync", self._sync)

    def _sync(self, descriptor: int) -> None:
        if len(self.calls) == self._dies_at:
            raise KeyboardInterrupt
        self.calls.append((os.readlink(f"/proc/self/fd/{descriptor}"), self.watched()))
        self._fsync(descriptor)

    def before(self, name: str) -> set[str]:
        """What was synced before this file was there."""
        return {path for path, there in self.calls if name not in there}


def test_a_backup_is_on_the_disk_before_its_list(
    data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = tmp_path / "backup.part"
    synced = Synced(monkeypatch)
    synced.watched = lambda: names_in(part)
    take(data_dir, tmp_path / "backup", with_workspaces=True, say=ignore)
    kept = ("data/worker.db", "data/artifacts/kept/one", "data/artifacts/kept", "data/artifacts", "data")
    assert {str(part / name) for name in kept} <= synced.before("backup.json")
    assert (str(tmp_path), set()) in synced.calls, "the last rename, too"


def test_a_restore_is_on_the_disk_before_its_records(
    backup: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage, again = with_storage(backup, tmp_path), tmp_path / "again"
    synced = Synced(monkeypatch)
    synced.watched = lambda: names_in(again)
    restore(backup, again, ignore)
    kept = ("worker.db.part", "artifacts/kept/one", "artifacts/kept", "artifacts")
    expected = {str(again / name) for name in kept} | {str(storage.part), str(tmp_path)}
    assert expected <= synced.before("worker.db")


def test_a_restore_that_dies_anywhere_can_be_repeated(
    backup: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until it is whole it has no records, and a worker does not take it for one."""
    for dies_at in itertools.count():
        place = tmp_path / str(dies_at)
        place.mkdir()
        storage, again = with_storage(backup, place), place / "again"
        with monkeypatch.context() as dying:
            synced = Synced(dying, dies_at)
            try:
                restore(backup, again, ignore)
            except KeyboardInterrupt:
                died = True
            else:
                died = False
        whole = names_in(again) >= {"worker.db", "artifacts/kept/one"} and storage.file.exists()
        assert (owner_of(again / "worker.db") is not None) == whole
        if not whole:
            restore(backup, again, ignore)
            assert names_in(again) == {"worker.db", "artifacts/kept/one", "docker/lock"}
        assert owner_of(again / "worker.db") == OWNER
        assert storage.file.read_bytes() == (backup / STORAGE).read_bytes()
        with pytest.raises(Conflict, match="nothing is replaced"):
            restore(backup, again, ignore)
        if not died:
            break
    assert len(synced.calls) > 8


def test_a_storage_that_cannot_be_restored(backup: Path, tmp_path: Path) -> None:
    """An hour of copying may end with a full disk."""
    (tmp_path / "parent").write_text("no folder")
    with_storage(backup, tmp_path / "parent")
    with pytest.raises(FileExistsError):
        restore(backup, tmp_path / "again", ignore)
    assert names_in(tmp_path / "again") == {"docker/lock"}
    (tmp_path / "parent").unlink()
    restore(backup, tmp_path / "again", ignore)
    assert (tmp_path / "parent/storage.btrfs").stat().st_blocks * 512 < 5 * MIB, "holes stay holes"


def test_a_repeated_restore_removes_nothing_else(backup: Path, tmp_path: Path) -> None:
    """Not what a note names that its owner has made, and not what came after a restore that had ended."""
    again = tmp_path / "again"
    again.mkdir()
    (tmp_path / "other").write_text("other")
    (again / RESTORING).write_text('["", ".", "..", "../other", "artifacts"]')
    (again / "artifacts").mkdir()
    (again / "webhooks.sqlite3").write_text("other")
    restore(backup, again, ignore)
    assert (tmp_path / "other").read_text() == (again / "webhooks.sqlite3").read_text() == "other"
    (again / RESTORING).write_text('["artifacts"]')
    with pytest.raises(Conflict, match="nothing is replaced"):
        restore(backup, again, ignore)
    assert (again / "artifacts/kept/one").exists()


def test_holes_and_zeros_are_the_same(backup: Path, tmp_path: Path) -> None:
    """A backup may be copied to where there are no holes."""
    with_storage(backup, tmp_path)
    plain = (backup / STORAGE).read_bytes()
    (backup / STORAGE).unlink()
    (backup / STORAGE).write_bytes(plain)
    restore(backup, tmp_path / "again", ignore)


def test_a_restore_for_a_running_worker(backup: Path, tmp_path: Path) -> None:
    with locked(provider_dir(tmp_path / "again")), pytest.raises(Conflict, match="Stop it"):
        restore(backup, tmp_path / "again", ignore)
