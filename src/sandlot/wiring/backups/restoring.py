"""Restores a backup.

In this order: the storage file, the data folder, and last the worker's records. Without them nothing counts,
so a restore that failed or was killed does not look like a whole one, and can be repeated.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec

from sandlot.config.data_folder import provider_dir
from sandlot.domain.errors import Conflict
from sandlot.providers.data_folder import locked, sync_folder, write_durably
from sandlot.providers.docker.workspaces.storage.file_copy import copy_sparse
from sandlot.providers.docker.workspaces.storage.file_system import mount_at
from sandlot.providers.docker.workspaces.storage.loop_file import LoopFile
from sandlot.wiring.backups.contents import DATA, RESTORING, STORAGE, Backup, make_durable, read_backup
from sandlot.wiring.worker import database_in

Say = Callable[[str], None]


def restore(folder: Path, data_dir: Path, say: Say) -> Backup:
    """Copy a backup to where a worker looks for it. Nothing that is there is replaced."""
    say(f"Checking {folder}.")
    backup = read_backup(folder)
    data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        with locked(provider_dir(data_dir)):
            _clear(folder / DATA, data_dir)
            if backup.storage is not None:
                _restore_storage(folder / STORAGE, LoopFile(Path(backup.storage.folder)), say)
            _restore_data(folder / DATA, data_dir, say)
    except BlockingIOError as error:
        raise Conflict(f"A server is using {data_dir}. Stop it, and move its folder away.") from error
    if backup.storage is not None and mount_at(Path(backup.storage.folder)) is None:
        command = f"sandlot storage init --path {backup.storage.folder}"
        say(f"Mount it before you start the worker. As root: {command}")
    return backup


def _clear(source: Path, data_dir: Path) -> None:
    """Remove what an earlier restore that did not end has put there.

    Raises ``Conflict`` if there is anything else that the backup has, too.
    """
    note = data_dir / RESTORING
    if database_in(data_dir).exists():
        note.unlink(missing_ok=True)  # that restore has ended, and a worker may have changed its files since
    earlier = _names_in(note)
    names = [path.name for path in sorted(source.iterdir())]
    if there := [name for name in names if name not in earlier and (data_dir / name).exists()]:
        raise Conflict(
            f"{data_dir} has {', '.join(there[:3])} already, and nothing is replaced. Move the folder away, "
            "or choose another with --data-dir."
        )
    for name in earlier:
        _remove(data_dir / name)
    note.unlink(missing_ok=True)


def _names_in(note: Path) -> set[str]:
    try:
        names = msgspec.json.decode(note.read_bytes(), type=set[str])
    except FileNotFoundError:
        return set()
    except msgspec.DecodeError as error:
        raise Conflict(f"{note} is damaged. Move its folder away, and repeat the command.") from error
    # Whoever owns the folder could have written the note, and root removes what it names.
    return {name for name in names if "/" not in name and name not in {"", ".", ".."}}


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _restore_data(source: Path, data_dir: Path, say: Say) -> None:
    say(f"Copying to {data_dir}.")
    records = database_in(data_dir)
    copied = records.with_name(f"{records.name}.part")
    targets = {path: data_dir / path.name for path in sorted(source.iterdir())}
    targets[database_in(source)] = copied
    names = sorted(target.name for target in targets.values())
    note = data_dir / RESTORING
    write_durably(note, msgspec.json.encode(names))
    for path, target in targets.items():
        if path.is_dir():
            shutil.copytree(path, target)
        else:
            shutil.copy2(path, target)
    if os.geteuid() == 0:
        _give_to_owner(data_dir, names)
    for target in targets.values():
        make_durable(target)
    sync_folder(data_dir)
    copied.rename(records)
    sync_folder(data_dir)
    note.unlink()


def _give_to_owner(data_dir: Path, names: list[str]) -> None:
    """Root restores for the user whose folder it is."""
    owner = data_dir.stat()
    for name in (*names, provider_dir(data_dir).name):
        for path in (data_dir / name, *(data_dir / name).rglob("*")):
            os.chown(path, owner.st_uid, owner.st_gid, follow_symlinks=False)


def _restore_storage(source: Path, storage: LoopFile, say: Say) -> None:
    if storage.file.exists():
        say(f"{storage.file} is there already and stays as it is. Its files may be newer than the records.")
        return
    say(f"Copying to {storage.file}.")
    storage.file.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    storage.part.unlink(missing_ok=True)
    copy_sparse(source, storage.part)
    make_durable(storage.part)
    storage.part.rename(storage.file)
    sync_folder(storage.file.parent)
