"""What a backup is made of.

<backup>/data/            the data folder, without what only a running worker needs
<backup>/storage.btrfs    the storage file of the workspaces, if they are in one
<backup>/backup.json      what the backup has; written last, so one without it is not whole
"""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from sandlot.config.announcement import NAME as ANNOUNCEMENT
from sandlot.config.data_folder import LOCAL_DIR, provider_dir
from sandlot.domain.errors import InvalidRequest
from sandlot.providers.data_folder import write_durably
from sandlot.wiring.brokers import PACKAGES_FOLDER

DATA: Final = "data"
STORAGE: Final = "storage.btrfs"
_LIST: Final = "backup.json"
_FORMAT: Final = 1
_MAX_LIST_BYTES: Final = 256 * 1024 * 1024
_BLOCK_BYTES: Final = 1024 * 1024
# In a data folder: what a restore that has not ended is putting there.
RESTORING: Final = "restoring.json"
# Sandboxes' secrets and sockets, which are of use to their own sandboxes only. So a worker that starts from a
# backup knows at once that it has lost them. The rest is a cache, or belongs to another worker.
LEFT_OUT: Final = frozenset(
    {provider_dir(Path()).name, "e2b", PACKAGES_FOLDER, LOCAL_DIR, ANNOUNCEMENT, RESTORING}
)
DATABASES: Final = (".sqlite3", ".db")


class Storage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The storage file. ``folder``: where it was mounted. ``digest``: see ``digest_of_sparse``."""

    folder: str
    size: int
    digest: str


class Backup(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``files``: their SHA-256, by their path below ``data``. ``storage``: None if the backup has none."""

    format: int
    version: str
    worker: str
    taken_at: str
    files: dict[str, str]
    storage: Storage | None = None


def write_list(folder: Path, backup: Backup) -> None:
    write_durably(folder / _LIST, msgspec.json.format(msgspec.json.encode(backup), indent=1))


def new_backup(
    version: str, worker: str, taken_at: str, files: dict[str, str], storage: Storage | None
) -> Backup:
    return Backup(_FORMAT, version, worker, taken_at, files, storage)


def read_backup(folder: Path) -> Backup:
    """Read the list of a backup, and compare every file with it. Raises ``InvalidRequest``."""
    try:
        with (folder / _LIST).open("rb") as file:
            backup = msgspec.json.decode(file.read(_MAX_LIST_BYTES), type=Backup)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise InvalidRequest(
            f"{folder} is no whole backup: it has no {_LIST}. Name a folder that `sandlot backup take` made."
        ) from error
    except msgspec.DecodeError as error:
        raise InvalidRequest(f"{folder / _LIST} is damaged ({error}). Use another backup.") from error
    if backup.format != _FORMAT:
        raise InvalidRequest(
            f"The backup was taken by Sandlot {backup.version}, in a format that this version does not know. "
            "Restore it with that version."
        )
    found = {str(path.relative_to(folder / DATA)) for path in files_in(folder / DATA)}
    if different := sorted(found ^ backup.files.keys()):
        raise InvalidRequest(f"{different[0]} is missing or not part of the backup. Use another backup.")
    for name, digest in backup.files.items():
        if digest_of(folder / DATA / name) != digest:
            raise InvalidRequest(f"{name} is damaged in {folder}. Use another backup.")
    if backup.storage is not None:
        _check_storage(folder, backup.storage)
    return backup


def _check_storage(folder: Path, storage: Storage) -> None:
    file = folder / STORAGE
    if not file.is_file():
        raise InvalidRequest(f"{STORAGE} is missing in {folder}. Use another backup.")
    if file.stat().st_size != storage.size or digest_of_sparse(file) != storage.digest:
        raise InvalidRequest(f"{STORAGE} is damaged in {folder}. Use another backup.")


def files_in(folder: Path) -> Iterator[Path]:
    """The regular files below a folder. Links are not followed."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.is_symlink():
            yield path


def digest_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digest_of_sparse(path: Path) -> str:
    """The SHA-256 of the blocks that are not all zeros, each after its place.

    So holes cost no time, and a copy in which they became zeros is the same.
    """
    digest = hashlib.sha256()
    zeros = bytes(_BLOCK_BYTES)
    with path.open("rb", buffering=0) as file:
        place = 0
        while True:
            try:
                place = os.lseek(file.fileno(), place, os.SEEK_DATA) // _BLOCK_BYTES * _BLOCK_BYTES
            except OSError as error:
                if error.errno != errno.ENXIO:
                    raise
                break  # what follows is one hole, or nothing
            block = os.pread(file.fileno(), _BLOCK_BYTES, place)
            if block != zeros[: len(block)]:
                digest.update(place.to_bytes(8, "big") + block)
            place += _BLOCK_BYTES
    return digest.hexdigest()


def make_durable(path: Path) -> None:
    """Wait until a file, or a folder with all that is in it, is on the disk."""
    for each in (path, *path.rglob("*")):
        if not each.is_symlink():
            descriptor = os.open(each, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
