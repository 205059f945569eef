"""Takes a backup."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
from collections.abc import Callable, Collection, Iterator
from datetime import UTC, datetime
from pathlib import Path

import sandlot
from sandlot.config.data_folder import provider_dir
from sandlot.config.workspaces.storage_folder import DEFAULT_STORAGE_DIR, storage_dir
from sandlot.domain.errors import Conflict, InvalidRequest, NotFound, StorageProblem
from sandlot.providers.data_folder import locked, sync_folder
from sandlot.providers.docker.workspaces.choosing import StoreMemory
from sandlot.providers.docker.workspaces.storage.file_copy import copy_frozen
from sandlot.providers.docker.workspaces.storage.file_system import btrfs_id
from sandlot.providers.docker.workspaces.storage.loop_file import LoopFile, device_of
from sandlot.wiring.backups.contents import (
    DATA,
    DATABASES,
    LEFT_OUT,
    STORAGE,
    Storage,
    digest_of,
    digest_of_sparse,
    files_in,
    make_durable,
    new_backup,
    write_list,
)
from sandlot.wiring.worker import database_in
from sandlot.worker.store.database import owner_of

Say = Callable[[str], None]


def take(data_dir: Path, folder: Path, *, with_workspaces: bool, say: Say) -> None:
    """Copy what a worker keeps into a new folder.

    Nobody sees half a backup under its name: it is made beside its place, and moved there once it is on the
    disk. Paths are compared without links: two that look different can lead to one place.
    """
    data_dir, folder = data_dir.resolve(), folder.resolve()
    worker = owner_of(database_in(data_dir))
    if worker is None:
        raise NotFound(f"There are no records of a worker in {data_dir}. Name its folder with --data-dir.")
    storage = _storage_of(data_dir) if with_workspaces else None
    _check_place(folder, data_dir, storage)
    if folder.exists():
        raise Conflict(f"{folder} exists already. Choose a folder that does not: each backup has its own.")
    part = folder.with_name(f"{folder.name}.part")
    with _stopped(data_dir):
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(mode=0o700, parents=True)
        try:
            _fill(part, data_dir, worker, storage, say)
        except BaseException:
            shutil.rmtree(part, ignore_errors=True)
            raise
        part.rename(folder)
        sync_folder(folder.parent)


def _fill(part: Path, data_dir: Path, worker: str, storage: LoopFile | None, say: Say) -> None:
    taken_at = datetime.now(UTC).isoformat(timespec="seconds")
    left_out = _storage_paths(data_dir)
    say(f"Copying {data_dir}.")
    for path in sorted(data_dir.iterdir()):
        if path.name not in LEFT_OUT:
            _copy(path, part / DATA / path.name, left_out, say)
    stored = None
    if storage is not None:
        say(f"Copying {storage.file}. Writes in workspaces wait until that is done.")
        copy = part / STORAGE
        copy_frozen(storage, copy)
        stored = Storage(str(storage.folder), copy.stat().st_size, digest_of_sparse(copy))
    files = {str(path.relative_to(part / DATA)): digest_of(path) for path in files_in(part / DATA)}
    make_durable(part)
    write_list(part, new_backup(sandlot.__version__, worker, taken_at, files, stored))


def _copy(source: Path, target: Path, left_out: Collection[Path], say: Say) -> None:
    """A socket or a link is left out: nothing that a worker must remember is in one."""
    target.parent.mkdir(mode=0o700, exist_ok=True)
    if source.is_symlink() or source in left_out:
        return
    if source.is_mount():
        say(f"{source} is another file system, and is left out. Back it up by its own means.")
    elif source.is_dir():
        target.mkdir(mode=0o700)
        for path in sorted(source.iterdir()):
            _copy(path, target / path.name, left_out, say)
    elif source.suffix in DATABASES:
        _copy_database(source, target)
    elif source.is_file() and not source.name.endswith(("-wal", "-shm")):
        shutil.copy2(source, target)


def _copy_database(source: Path, target: Path) -> None:
    """By SQLite itself, because the last commits are in a second file, its log."""
    os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    try:
        with (
            contextlib.closing(sqlite3.connect(source)) as original,
            contextlib.closing(sqlite3.connect(target)) as copy,
        ):
            original.backup(copy)
            (found,) = copy.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.Error as error:
        raise StorageProblem(f"Cannot copy {source}: {error}. Solve that and repeat the command.") from error
    if found != "ok":
        raise StorageProblem(f"{source} is damaged: {found}. Keep your older backups.")


def _check_place(folder: Path, data_dir: Path, storage: LoopFile | None) -> None:
    """A copy of the storage that is on the storage waits for ever: it is frozen until the copy is there."""
    if folder.is_relative_to(data_dir):
        raise InvalidRequest(f"{folder} is in {data_dir}, which is backed up. Choose a folder elsewhere.")
    if storage is None:
        return
    nearest = next(place for place in (folder, *folder.parents) if place.is_dir())
    # By its id, because each subvolume of a btrfs has a device number of its own.
    found = btrfs_id(nearest)
    if found is not None and found == btrfs_id(storage.folder.resolve()):
        raise InvalidRequest(
            f"{folder} is on the file system of {storage.folder}, which is backed up. Choose a folder "
            "elsewhere."
        )


def _storage_paths(data_dir: Path) -> Collection[Path]:
    """Where storage of workspaces is or would be, which by default is in the data folder.

    It is never copied file by file: its file would be torn, and what is in it is the sandboxes'.
    """
    used = StoreMemory(data_dir).folder
    folders = {DEFAULT_STORAGE_DIR, storage_dir(), *(() if used is None else (Path(used),))}
    storages = [LoopFile(folder) for folder in folders]
    return {path.resolve() for each in storages for path in (each.folder, each.file, each.part)}


def _storage_of(data_dir: Path) -> LoopFile | None:
    """The storage that the worker has used, or None if its workspaces are Docker volumes."""
    used = StoreMemory(data_dir).folder
    if used is None:
        return None
    storage = LoopFile(Path(used))
    if not storage.file.exists() or device_of(storage) is None:
        raise InvalidRequest(
            f"The workspaces are in {used}, which is not a mounted file of `sandlot storage init`. Mount it. "
            "If it is a file system of your own, back that up by its own means, and add --without-workspaces."
        )
    return storage


@contextlib.contextmanager
def _stopped(data_dir: Path) -> Iterator[None]:
    """Raises ``Conflict`` while a worker uses the folder; none can start in it until the block ends."""
    try:
        with locked(provider_dir(data_dir)):
            yield
    except BlockingIOError as error:
        raise Conflict(
            f"A server is using {data_dir}. Stop it first: its sandboxes and commands run on."
        ) from error
