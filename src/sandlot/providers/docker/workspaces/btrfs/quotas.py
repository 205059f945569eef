"""Limits of workspaces, by the file system's simple quotas.

Simple quotas charge each block to the subvolume that wrote it, for as long as anything needs the block.
That costs nothing for a snapshot. The older full quotas find out who shares each block, which is exact, but
with a thousand snapshots of ten thousand files one commit takes minutes (tried). So a workspace differs in
two ways from what it is charged for:

- files that it inherited from a snapshot are charged to another subvolume;
- files that it has replaced since a snapshot stay charged to it, while the snapshot needs them.

``credit`` is the difference: what it uses is what it is charged minus its credit. The limit that the kernel
enforces is the quota plus the credit. The kernel keeps the credit beside the limit, in a field that it
does not use, so both change and disappear together.
"""

from __future__ import annotations

import errno
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sandlot.providers.docker.workspaces.btrfs.subvolumes import call, request

_QUOTA_CTL = request(3, 40, 16)
_QGROUP_LIMIT = request(2, 43, 48)
_TREE_SEARCH = request(3, 17, 4096)
_FS_INFO = request(2, 31, 1024)
_ENABLE_SIMPLE: Final = 4
_QUOTA_TREE: Final = 8
_INFO_KEY, _LIMIT_KEY = 242, 244
_MAX_REFERENCED: Final = 1 << 0
_RESERVED_REFERENCED: Final = 1 << 2
_HEADER: Final = struct.Struct("=QQQII")
# A workspace needs some blocks to be used at all, whatever its quota and its inherited files.
MIN_LIMIT_BYTES: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Charge:
    """``charged``: the blocks that the subvolume pays for, as of the last commit. ``limit``: None without."""

    charged: int
    credit: int = 0
    limit: int | None = None

    @property
    def used(self) -> int:
        return max(0, self.charged - self.credit)


def mode(filesystem: int) -> str:
    """``off``, ``simple``, or ``full``, which others have switched on."""
    folder = Path("/sys/fs/btrfs") / _uuid(filesystem) / "qgroups"
    try:
        if (folder / "enabled").read_text().strip() != "1":
            return "off"
        return "simple" if (folder / "mode").read_text().strip() == "squota" else "full"
    except FileNotFoundError:
        return "full" if folder.is_dir() else "off"


def enable(filesystem: int) -> bool:
    """Switch simple quotas on. False if the kernel has none (before Linux 6.7), or full ones are on."""
    found = mode(filesystem)
    if found != "off":
        return found == "simple"
    try:
        call(filesystem, _QUOTA_CTL, struct.pack("=QQ", _ENABLE_SIMPLE, 0))
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOTTY):
            return False
        raise
    return True


def limit(folder: int, subvolume_id: int, quota: int | None, credit: int) -> None:
    """Limit what a workspace may use. ``None``: without limit.

    ``folder``: one on the same file system that is outside the workspace. The change takes a moment's room
    of the subvolume that the folder is in, and a full workspace has none.
    """
    maximum = limit_of(quota, credit)
    flags = _RESERVED_REFERENCED | (0 if maximum is None else _MAX_REFERENCED)
    call(folder, _QGROUP_LIMIT, struct.pack("=QQQQqQ", subvolume_id, flags, maximum or 0, 0, credit, 0))


def limit_of(quota: int | None, credit: int) -> int | None:
    """What the kernel enforces."""
    return None if quota is None else max(quota + credit, MIN_LIMIT_BYTES)


def charge(subvolume: int, subvolume_id: int) -> Charge:
    charged, credit, limited = 0, 0, None
    for key in (_INFO_KEY, _LIMIT_KEY):
        item = _item(subvolume, key, subvolume_id)
        if item is None:
            continue
        if key == _INFO_KEY:
            charged = struct.unpack_from("<QQ", item)[1]
        else:
            flags, maximum, _, credit = struct.unpack_from("<QQQq", item)
            limited = maximum if flags & _MAX_REFERENCED else None
    return Charge(charged, credit, limited)


def _item(filesystem: int, key: int, group: int) -> bytes | None:
    search = struct.pack("=QQQQQQQIIII32x", _QUOTA_TREE, 0, 0, group, group, 0, 2**64 - 1, key, key, 1, 0)
    try:
        answer = call(filesystem, _TREE_SEARCH, search.ljust(4096, b"\0"))
    except FileNotFoundError:  # quotas are off
        return None
    found = struct.unpack_from("=I", answer, 64)[0]
    if not found:
        return None
    size = _HEADER.unpack_from(answer, 104)[4]
    return answer[104 + _HEADER.size : 104 + _HEADER.size + size]


def _uuid(filesystem: int) -> str:
    answer = call(filesystem, _FS_INFO, bytes(1024))
    text = answer[16:32].hex()
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))
