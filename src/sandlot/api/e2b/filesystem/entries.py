"""Entries of a sandbox's files in E2B's words."""

from __future__ import annotations

import stat
from typing import Final

import msgspec

from sandlot.api.e2b.calls import SANDBOX_USER
from sandlot.api.e2b.sessions import timestamp
from sandlot.domain.files import FileEntry, FileType

# Other types, such as sockets, have no name in E2B's API. Its SDKs skip entries of such a type.
_TYPES: Final = {
    FileType.FILE: "FILE_TYPE_FILE",
    FileType.DIRECTORY: "FILE_TYPE_DIRECTORY",
    FileType.SYMLINK: "FILE_TYPE_SYMLINK",
}
_KINDS: Final = {
    FileType.FILE: stat.S_IFREG,
    FileType.DIRECTORY: stat.S_IFDIR,
    FileType.SYMLINK: stat.S_IFLNK,
    FileType.FIFO: stat.S_IFIFO,
    FileType.SOCKET: stat.S_IFSOCK,
    FileType.DEVICE: stat.S_IFCHR,
}
_ROOT: Final = 0
_NOBODY: Final = 65_534
# Below it are the users of a system. A sandbox has one user of its own, whose number differs.
_MIN_UID: Final = 1000


class Entry(msgspec.Struct, rename="camel", omit_defaults=True, frozen=True):
    name: str
    type: str
    path: str
    size: int
    mode: int
    permissions: str
    owner: str
    group: str
    modified_time: str
    is_symlink: bool = False
    symlink_target: str | None = None


def entry_of(entry: FileEntry, target: FileEntry | None = None) -> Entry:
    """``target``: what a symbolic link leads to, if it is known. The link then counts as its target."""
    shown = entry if target is None else target
    is_link = entry.type is FileType.SYMLINK
    return Entry(
        name=entry.name,
        type=_TYPES.get(shown.type, "FILE_TYPE_UNSPECIFIED"),
        path=entry.path,
        size=shown.size,
        mode=shown.mode,
        permissions=stat.filemode(_KINDS[shown.type] | shown.mode),
        owner=_name(shown.uid),
        group=_name(shown.gid),
        modified_time=timestamp(shown.mtime_ms / 1000),
        is_symlink=is_link,
        symlink_target=(entry.target or "") if is_link else None,
    )


def _name(number: int) -> str:
    if number == _ROOT:
        return "root"
    return str(number) if number < _MIN_UID or number == _NOBODY else SANDBOX_USER
