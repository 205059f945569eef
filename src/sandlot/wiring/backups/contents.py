"""What a backup is made of.

<backup>/data/            the data folder, without what only a running worker needs
<backup>/storage.btrfs    the storage file of the workspaces, if they are in one
<backup>/backup.json      what the backup has; written last, so one without it is not whole
"""

from __future__ import annotations

import hashlib
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
# Sandboxes' secrets and sockets, which are of use to their own sandboxes only. So a worker that starts from a
# backup knows at once that it has lost them. The rest is a cache, or belongs to another worker.
LEFT_OUT: Final = frozenset({provider_dir(Path()).name, "e2b", PACKAGES_FOLDER, LOCAL_DIR, ANNOUNCEMENT})
DATABASES: Final = (".sqlite3", ".db")


class Backup(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``files``: their SHA-256, by their path below ``data``. ``storage``: where the storage was mounted;
    None if the backup has none.
    """

    format: int
    version: str
    worker: str
    taken_at: str
    files: dict[str, str]
    storage: str | None = None


def write_list(folder: Path, backup: Backup) -> None:
    write_durably(folder / _LIST, msgspec.json.format(msgspec.json.encode(backup), indent=1))


def new_backup(
    version: str, worker: str, taken_at: str, files: dict[str, str], storage: str | None
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
    if backup.storage is not None and not (folder / STORAGE).is_file():
        raise InvalidRequest(f"{STORAGE} is missing in {folder}. Use another backup.")
    return backup


def files_in(folder: Path) -> Iterator[Path]:
    """The regular files below a folder. Links are not followed."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.is_symlink():
            yield path


def digest_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
