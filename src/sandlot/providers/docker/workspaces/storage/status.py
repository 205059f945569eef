"""What is known about the storage of workspaces on this machine, and what is wrong with it."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from sandlot.providers.docker.workspaces.storage.boot_mount import FSTAB, is_mounted_at_boot
from sandlot.providers.docker.workspaces.storage.file_system import Quotas, btrfs_id, quotas_of
from sandlot.providers.docker.workspaces.storage.loop_file import LoopFile, device_of


class StorageKind(StrEnum):
    """What the folder of the storage is.

    loop file: a file with a btrfs in it, which ``sandlot storage init`` made.
    btrfs: a folder on a btrfs that the machine has anyway.
    none: neither; workspaces are Docker volumes.
    """

    LOOP_FILE = "loop file"
    BTRFS = "btrfs"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class StorageStatus:
    """Sizes are in bytes, and None where there is nothing to measure.

    path: the folder of the workspaces.
    file: the loop file, if there is one.
    size: how much the file system holds.
    quotas: how it limits workspaces; None without a btrfs.
    mounted: whether the folder is on btrfs now.
    boot_mount: whether it is mounted at boot; None if that is not Sandlot's affair.
    file_taken: how much the loop file takes on the disk that it is on.
    disk_free: how much that disk has left.
    problems: what is wrong, and what to do about it.
    """

    kind: StorageKind
    path: str
    file: str | None = None
    size: int | None = None
    used: int | None = None
    free: int | None = None
    quotas: Quotas | None = None
    mounted: bool = False
    boot_mount: bool | None = None
    file_taken: int | None = None
    disk_free: int | None = None
    problems: tuple[str, ...] = ()


def examine(folder: Path, fstab: Path = FSTAB) -> StorageStatus:
    """Look at the storage in this folder, and change nothing."""
    storage = LoopFile(folder)
    has_file = os.path.lexists(storage.file)
    mounted = btrfs_id(folder) is not None
    if not has_file and not mounted:
        return StorageStatus(StorageKind.NONE, str(folder))
    problems = []
    size = used = free = None
    quotas = None
    if mounted:
        disk = shutil.disk_usage(folder)
        size, used, free = disk.total, disk.used, disk.free
        quotas = quotas_of(folder)
        if quotas is Quotas.OFF:
            problems.append(
                "Quotas are off, so a workspace may fill the storage. As root, run `sandlot storage init` "
                "again, on Linux 6.7 or newer."
            )
        elif quotas is Quotas.FULL:
            problems.append(
                "Its quotas are full ones, which are slow with many snapshots, so Sandlot does not use them. "
                f"As root, run `btrfs quota disable {folder}`, then `sandlot storage init` again."
            )
    if not has_file:
        return StorageStatus(
            StorageKind.BTRFS, str(folder), None, size, used, free, quotas, mounted, problems=tuple(problems)
        )
    boot_mount = is_mounted_at_boot(storage, fstab)
    found = storage.file.stat()
    taken, disk_free = found.st_blocks * 512, shutil.disk_usage(storage.file.parent).free
    if not mounted:
        problems.append(f"It is not mounted. As root, run `sandlot storage init --path {folder}` again.")
    elif device_of(storage) is None:
        problems.append(f"Something else than {storage.file} is mounted at {folder}. Unmount it.")
    if not boot_mount:
        problems.append("It is not mounted at boot. As root, run `sandlot storage init` again.")
    if found.st_size - taken > disk_free:
        problems.append(
            f"The disk of {storage.file} is too small for it: the file may take {found.st_size - taken:,} "
            f"bytes more, and {disk_free:,} are free. If that disk fills up, writes in all workspaces fail. "
            "Free some space there."
        )
    return StorageStatus(
        StorageKind.LOOP_FILE,
        str(folder),
        str(storage.file),
        size if size is not None else found.st_size,
        used,
        free,
        quotas,
        mounted,
        boot_mount,
        taken,
        disk_free,
        tuple(problems),
    )
