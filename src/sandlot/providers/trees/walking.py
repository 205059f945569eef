"""Walks a tree in the order of its manifest: each folder, what is in it by name, the folder's end."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from sandlot.domain.errors import StorageProblem, TooLarge
from sandlot.domain.workspaces.objects.limits import MAX_DEPTH, MAX_ENTRIES
from sandlot.providers.trees.place import Place, names_in


class Kind(Enum):
    FOLDER = 1
    FOLDER_END = 2
    FILE = 3
    SYMLINK = 4
    PIPE = 5
    SOCKET = 6
    # A device, or another file system: it is not part of the workspace.
    FOREIGN = 7


@dataclass(frozen=True, slots=True)
class Found:
    """``folder``: the open folder that it is in; for a folder, the folder itself. It is open until the next
    step of the walk.
    """

    kind: Kind
    name: bytes
    stat: os.stat_result
    folder: int


def walk(root: Path) -> Iterator[Found]:
    """The tree must not change meanwhile."""
    place = Place(root)
    try:
        at_root = os.fstat(place.fd)
        yield Found(Kind.FOLDER, b"", at_root, place.fd)
        levels = [iter(names_in(place.fd))]
        seen = 0
        while levels:
            name = next(levels[-1], None)
            if name is None:
                yield Found(Kind.FOLDER_END, b"", at_root, place.fd)
                levels.pop()
                if levels:
                    os.close(place.leave())
                continue
            seen += 1
            if seen > MAX_ENTRIES:
                raise TooLarge(f"The workspace has more than {MAX_ENTRIES:,} files.")
            found = os.stat(name, dir_fd=place.fd, follow_symlinks=False)
            kind = _kind_of(found) if found.st_dev == place.device else Kind.FOREIGN
            if kind is Kind.FOLDER:
                if place.depth >= MAX_DEPTH:
                    raise TooLarge(f"The workspace has folders more than {MAX_DEPTH} deep inside each other.")
                place.enter(name)
                levels.append(iter(names_in(place.fd)))
            yield Found(kind, name, found, place.fd)
    finally:
        place.close()


def open_file(found: Found) -> int:
    """Open a file to read it. The caller closes it."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    opened = os.open(found.name, flags, dir_fd=found.folder)
    if os.fstat(opened).st_ino != found.stat.st_ino:
        os.close(opened)
        raise StorageProblem("A file was replaced while the workspace was saved.")
    return opened


def _kind_of(found: os.stat_result) -> Kind:
    mode = found.st_mode
    if stat.S_ISREG(mode):
        return Kind.FILE
    if stat.S_ISDIR(mode):
        return Kind.FOLDER
    if stat.S_ISLNK(mode):
        return Kind.SYMLINK
    if stat.S_ISFIFO(mode):
        return Kind.PIPE
    return Kind.SOCKET if stat.S_ISSOCK(mode) else Kind.FOREIGN
