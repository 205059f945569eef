"""Restores a backup."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from sandlot.config.data_folder import provider_dir
from sandlot.domain.errors import Conflict
from sandlot.providers.data_folder import locked, sync_folder
from sandlot.providers.docker.workspaces.storage.file_copy import copy_sparse
from sandlot.providers.docker.workspaces.storage.loop_file import LoopFile
from sandlot.wiring.backups.contents import DATA, STORAGE, Backup, read_backup
from sandlot.wiring.worker import database_in

Say = Callable[[str], None]


def restore(folder: Path, data_dir: Path, say: Say) -> Backup:
    """Copy a backup to where a worker looks for it. Nothing that is there is replaced.

    The worker's records come last. Without them nothing counts, so a restore that was killed does not look
    like a whole one.
    """
    say(f"Checking {folder}.")
    backup = read_backup(folder)
    data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        with locked(provider_dir(data_dir)):
            _restore_data(folder / DATA, data_dir, say)
    except BlockingIOError as error:
        raise Conflict(f"A server is using {data_dir}. Stop it, and move its folder away.") from error
    if backup.storage is not None:
        _restore_storage(folder / STORAGE, LoopFile(Path(backup.storage)), say)
    return backup


def _restore_data(source: Path, data_dir: Path, say: Say) -> None:
    records = database_in(source)
    names = [path.name for path in sorted(source.iterdir()) if path != records] + [records.name]
    if there := [name for name in names if (data_dir / name).exists()]:
        raise Conflict(
            f"{data_dir} has {', '.join(there[:3])} already, and nothing is replaced. Move the folder away, "
            "or choose another with --data-dir."
        )
    say(f"Copying to {data_dir}.")
    for name in names:
        if (source / name).is_dir():
            shutil.copytree(source / name, data_dir / name)
        else:
            shutil.copy2(source / name, data_dir / name)
    if os.geteuid() == 0:
        _give_to_owner(data_dir, names)
    sync_folder(data_dir)


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
    copy_sparse(source, storage.part)
    storage.part.rename(storage.file)
    sync_folder(storage.file.parent)
    say(f"Mount it before you start the worker: sudo sandlot storage init --path {storage.folder}")
