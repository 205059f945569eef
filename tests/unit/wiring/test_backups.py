"""What a backup refuses, and that a damaged one is never restored. tests/faults/test_backup.py has whole ones."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from sandlot.config.data_folder import provider_dir
from sandlot.domain.errors import Conflict, InvalidRequest, NotFound, StorageProblem
from sandlot.providers.data_folder import locked
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
    take(data_dir, tmp_path / "backup", with_workspaces=True, say=lambda _: None)
    return tmp_path / "backup"


def names_in(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_it_has_what_a_worker_must_remember(backup: Path, tmp_path: Path) -> None:
    assert names_in(backup) == {"backup.json", "data/worker.db", "data/artifacts/kept/one"}
    assert backup.stat().st_mode & 0o777 == 0o700
    restore(backup, tmp_path / "again", lambda _: None)
    assert names_in(tmp_path / "again") == {"worker.db", "artifacts/kept/one", "docker/lock"}
    assert owner_of(tmp_path / "again/worker.db") == OWNER


def test_commits_in_the_log_of_a_killed_worker_are_in_it(data_dir: Path, tmp_path: Path) -> None:
    with closing(sqlite3.connect(data_dir / "worker.db", isolation_level=None)) as database:
        database.execute("PRAGMA wal_autocheckpoint = 0")
        database.execute("INSERT INTO sandboxes VALUES ('sbx_1', 'default', 'warm')")
        take(data_dir, tmp_path / "backup", with_workspaces=True, say=lambda _: None)
    with closing(sqlite3.connect(tmp_path / "backup/data/worker.db")) as copy:
        assert copy.execute("SELECT id FROM sandboxes").fetchall() == [("sbx_1",)]


def test_a_running_worker_is_left_alone(data_dir: Path, tmp_path: Path) -> None:
    with locked(provider_dir(data_dir)), pytest.raises(Conflict, match="Stop it first"):
        take(data_dir, tmp_path / "backup", with_workspaces=True, say=lambda _: None)
    assert not (tmp_path / "backup").exists()


def test_no_worker_has_been_there(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="--data-dir"):
        take(tmp_path, tmp_path / "backup", with_workspaces=True, say=lambda _: None)


def test_no_backup_is_replaced_or_put_into_what_it_is_of(data_dir: Path, backup: Path) -> None:
    with pytest.raises(Conflict, match="exists already"):
        take(data_dir, backup, with_workspaces=True, say=lambda _: None)
    with pytest.raises(InvalidRequest, match="Choose a folder elsewhere"):
        take(data_dir, data_dir / "backup", with_workspaces=True, say=lambda _: None)


def test_storage_that_is_not_a_mounted_file(data_dir: Path, tmp_path: Path) -> None:
    (data_dir / "workspaces-on-btrfs").write_text(f"{tmp_path}/storage\n")
    with pytest.raises(InvalidRequest, match="--without-workspaces"):
        take(data_dir, tmp_path / "backup", with_workspaces=True, say=lambda _: None)
    take(data_dir, tmp_path / "backup", with_workspaces=False, say=lambda _: None)
    assert json.loads((tmp_path / "backup/backup.json").read_text())["storage"] is None


def test_a_damaged_database_leaves_no_backup(data_dir: Path, tmp_path: Path) -> None:
    (data_dir / "history.sqlite3").write_bytes(b"this is no database" * 300)
    with pytest.raises(StorageProblem, match=r"history\.sqlite3"):
        take(data_dir, tmp_path / "backup", with_workspaces=True, say=lambda _: None)
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
    _change_list(backup, storage="/somewhere")


def later_format(backup: Path) -> None:
    _change_list(backup, format=2)


def _change_list(backup: Path, **fields: object) -> None:
    listed = json.loads((backup / "backup.json").read_text())
    (backup / "backup.json").write_text(json.dumps({**listed, **fields}))


@pytest.mark.parametrize(
    "damage",
    [changed_content, missing_file, added_file, missing_list, broken_list, missing_storage, later_format],
)
def test_a_damaged_backup_is_not_restored(
    damage: Callable[[Path], None], backup: Path, tmp_path: Path
) -> None:
    damage(backup)
    with pytest.raises(InvalidRequest):
        restore(backup, tmp_path / "again", lambda _: None)
    assert not (tmp_path / "again").exists()


def test_a_restore_replaces_nothing(backup: Path, data_dir: Path) -> None:
    with pytest.raises(Conflict, match="nothing is replaced"):
        restore(backup, data_dir, lambda _: None)


def test_a_restore_for_a_running_worker(backup: Path, tmp_path: Path) -> None:
    with locked(provider_dir(tmp_path / "again")), pytest.raises(Conflict, match="Stop it"):
        restore(backup, tmp_path / "again", lambda _: None)
