"""Takes a backup."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import sandlot
from sandlot.config.data_folder import provider_dir
from sandlot.domain.errors import Conflict, InvalidRequest, NotFound, StorageProblem
from sandlot.providers.data_folder import locked, sync_folder
from sandlot.providers.docker.workspaces.choosing import StoreMemory
from sandlot.providers.docker.workspaces.storage.file_copy import copy_frozen
from sandlot.providers.docker.workspaces.storage.loop_file import LoopFile, device_of
from sandlot.wiring.backups.contents import (
    DATA,
    DATABASES,
    LEFT_OUT,
    STORAGE,
    digest_of,
    files_in,
    new_backup,
    write_list,
)
from sandlot.wiring.worker import database_in
from sandlot.worker.store.database import owner_of

Say = Callable[[str], None]


def take(data_dir: Path, folder: Path, *, with_workspaces: bool, say: Say) -> None:
    """Copy what a worker keeps into a new folder.

    Nobody sees half a backup under its name: it is made beside its place and moved there.
    """
    worker = owner_of(database_in(data_dir))
    if worker is None:
        raise NotFound(f"There are no records of a worker in {data_dir}. Name its folder with --data-dir.")
    storage = _storage_of(data_dir) if with_workspaces else None
    for inside in (data_dir, *(() if storage is None else (storage.folder,))):
        if folder.is_relative_to(inside):
            raise InvalidRequest(f"{folder} is in {inside}, which is backed up. Choose a folder elsewhere.")
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
    left_out = set() if storage is None else {storage.folder, storage.file, storage.part}
    say(f"Copying {data_dir}.")
    for path in sorted(data_dir.iterdir()):
        if path.name not in LEFT_OUT and path not in left_out and not path.is_mount():
            _copy(path, part / DATA / path.name)
    if storage is not None:
        say(f"Copying {storage.file}. Writes in workspaces wait until that is done.")
        copy_frozen(storage, part / STORAGE)
    files = {str(path.relative_to(part / DATA)): digest_of(path) for path in files_in(part / DATA)}
    named = None if storage is None else str(storage.folder)
    write_list(part, new_backup(sandlot.__version__, worker, taken_at, files, named))


def _copy(source: Path, target: Path) -> None:
    """A socket or a link is left out: nothing that a worker must remember is in one."""
    target.parent.mkdir(mode=0o700, exist_ok=True)
    if source.is_symlink():
        return
    if source.is_dir():
        target.mkdir(mode=0o700)
        for path in sorted(source.iterdir()):
            _copy(path, target / path.name)
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
