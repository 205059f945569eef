"""The kernel's calls on btrfs subvolumes, by folder descriptor and name, so that no path is followed.

Direct calls, because the ``btrfs`` command costs 3 to 5 ms for each.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

# Every subvolume's own folder has this inode number.
ROOT_INODE: Final = 256
_WRITE, _READ = 1, 2
_MAX_NAME_BYTES = 255
_READ_ONLY: Final = 1 << 1


def request(direction: int, number: int, size: int) -> int:
    """An ioctl number of btrfs."""
    return direction << 30 | size << 16 | 0x94 << 8 | number


_SUBVOL_CREATE = request(_WRITE, 14, 4096)
_SNAP_DESTROY = request(_WRITE, 15, 4096)
_SNAP_CREATE_V2 = request(_WRITE, 23, 4096)
_SUBVOL_GETFLAGS = request(_READ, 25, 8)
_SUBVOL_SETFLAGS = request(_WRITE, 26, 8)
_SUBVOL_INFO = request(_READ, 60, 504)


@dataclass(frozen=True, slots=True)
class SubvolumeInfo:
    """``written``: the transaction of its last change. ``made``: the one that made it."""

    id: int
    uuid: bytes
    parent_uuid: bytes
    written: int
    made: int


@contextlib.contextmanager
def opened(path: Path, folder: int | None = None) -> Iterator[int]:
    """A folder's descriptor. Its last part may not be a link."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(path, flags, dir_fd=folder)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def create(folder: int, name: str) -> None:
    call(folder, _SUBVOL_CREATE, struct.pack("=q4088s", 0, _checked(name)))


def snapshot(source: int, folder: int, name: str, *, read_only: bool) -> None:
    """Keep the source's files under this name. Its data in memory is written first."""
    flags = _READ_ONLY if read_only else 0
    call(folder, _SNAP_CREATE_V2, struct.pack("=qQQ32x4040s", source, 0, flags, _checked(name)))


def copy(source: Path, target: Path, *, read_only: bool) -> None:
    """Make a subvolume with the same files, which shares all its blocks with the source."""
    with opened(source) as original, opened(target.parent) as folder:
        snapshot(original, folder, target.name, read_only=read_only)


def destroy(folder: int, name: bytes) -> None:
    """Delete a subvolume. The kernel frees its space later."""
    call(folder, _SNAP_DESTROY, struct.pack("=q4088s", 0, name))


def make_writable(subvolume: int) -> None:
    flags = struct.unpack("=Q", call(subvolume, _SUBVOL_GETFLAGS, bytes(8)))[0]
    call(subvolume, _SUBVOL_SETFLAGS, struct.pack("=Q", flags & ~_READ_ONLY))


def info(subvolume: int) -> SubvolumeInfo:
    answer = call(subvolume, _SUBVOL_INFO, bytes(504))
    # treeid, name, parent_id, dirid, generation, flags, uuid, parent_uuid, received_uuid, ctransid, otransid
    head = struct.unpack_from("=Q256sQQQQ16s16s16sQQ", answer)
    return SubvolumeInfo(head[0], head[6], head[7], head[9], head[10])


def is_subvolume(status: os.stat_result, parent: os.stat_result) -> bool:
    return status.st_ino == ROOT_INODE and status.st_dev != parent.st_dev


def call(descriptor: int, number: int, argument: bytes) -> bytes:
    # A bytearray: Python refuses to pass more than 1,024 bytes that cannot change.
    buffer = bytearray(argument)
    fcntl.ioctl(descriptor, number, buffer)
    return bytes(buffer)


def _checked(name: str) -> bytes:
    encoded = name.encode("ascii")
    if not 0 < len(encoded) <= _MAX_NAME_BYTES or "/" in name:
        raise ValueError("not a subvolume's name")
    return encoded
