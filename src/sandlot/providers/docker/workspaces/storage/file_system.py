"""Asks the kernel about a folder's file system, and switches the quotas of a btrfs on."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from uuid import UUID

from sandlot.domain.errors import EngineProblem
from sandlot.providers.docker.workspaces.btrfs import quotas
from sandlot.providers.docker.workspaces.btrfs.subvolumes import opened

# BTRFS_IOC_FS_INFO of linux/btrfs.h.
_FS_INFO, _FS_INFO_BYTES = 0x8400941F, 1024


class Quotas(StrEnum):
    """How a btrfs limits its subvolumes.

    simple: an extent counts for the subvolume that wrote it. Costs next to nothing; since Linux 6.7.
    full: counts what subvolumes share, which is slow with many snapshots. Sandlot does not use them.
    """

    SIMPLE = "simple"
    FULL = "full"
    OFF = "off"


@dataclass(frozen=True, slots=True)
class Mount:
    """Where a file system is mounted, from /proc/self/mountinfo."""

    point: Path
    source: str


def btrfs_id(folder: Path) -> str | None:
    """The id of the btrfs file system that a folder is on; None if it is on another, or not there."""
    info = bytearray(_FS_INFO_BYTES)
    try:
        with opened(folder) as descriptor:
            fcntl.ioctl(descriptor, _FS_INFO, info)
    except OSError:
        return None
    return str(UUID(bytes=bytes(info[16:32])))


def quotas_of(folder: Path) -> Quotas:
    with opened(folder) as descriptor:
        return Quotas(quotas.mode(descriptor))


def enable_quotas(folder: Path) -> Quotas:
    """Switch simple quotas on, if the kernel has them. Full ones that are on already stay."""
    try:
        with opened(folder) as descriptor:
            quotas.enable(descriptor)
    except OSError as error:
        raise EngineProblem(
            f"Cannot switch on the quotas of the btrfs at {folder}: {error.strerror}. Run the command as "
            "root."
        ) from error
    return quotas_of(folder)


def kernel_has_simple_quotas() -> bool:
    return Path("/sys/fs/btrfs/features/simple_quota").exists()


def mount_at(folder: Path) -> Mount | None:
    """What is mounted at this folder itself; None if it is no mount point."""
    point = folder.resolve()
    found = None
    for mount in _mounts():
        if mount.point == point:
            found = mount  # the last one covers those before it
    return found


def kernel_has_btrfs() -> bool:
    """Whether the kernel has btrfs now. It may still load the module when something is mounted."""
    try:
        return "btrfs" in Path("/proc/filesystems").read_text().split()
    except OSError:
        return False


def _mounts() -> Iterator[Mount]:
    for line in Path("/proc/self/mountinfo").read_bytes().splitlines():
        before, _, after = line.partition(b" - ")
        point = before.split()[4].decode("unicode_escape").encode("latin-1")
        yield Mount(Path(os.fsdecode(point)), os.fsdecode(after.split()[1]))
