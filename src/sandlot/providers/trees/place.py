"""A place in a tree: the folder that a walk is in.

One open folder, however deep: the way up is "..", and it must lead to the folder that the walk came from. So
no path is longer than one name, and no symbolic link is followed.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from sandlot.domain.errors import StorageProblem

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Place:
    """``fd``: the folder. ``device``: the file system that the tree is on."""

    def __init__(self, root: Path | int) -> None:
        self.fd = os.open(".", _FOLDER, dir_fd=root) if isinstance(root, int) else os.open(root, _FOLDER)
        here = os.fstat(self.fd)
        self.device = here.st_dev
        self._above: list[tuple[int, int]] = []
        self._here = (here.st_dev, here.st_ino)

    @property
    def depth(self) -> int:
        return len(self._above)

    def enter(self, name: bytes) -> None:
        inside = os.open(name, _FOLDER, dir_fd=self.fd)
        os.close(self.fd)
        self.fd = inside
        self._above.append(self._here)
        found = os.fstat(inside)
        self._here = (found.st_dev, found.st_ino)

    def leave(self) -> int:
        """Go up. The caller closes the folder that is returned."""
        left = self.fd
        self.fd = os.open("..", _FOLDER, dir_fd=left)
        found = os.fstat(self.fd)
        self._here = self._above.pop()
        if (found.st_dev, found.st_ino) != self._here:
            os.close(left)
            raise StorageProblem("A folder was moved while its files were saved or loaded.")
        return left

    def close(self) -> None:
        os.close(self.fd)


def names_in(folder: int) -> list[bytes]:
    """In order."""
    return sorted(os.fsencode(name) for name in os.listdir(folder))


def empty(root: Path | int) -> None:
    """Remove everything in a folder, however deep, and keep the folder."""
    place = Place(root)
    within: list[bytes] = []
    levels = [iter(names_in(place.fd))]
    try:
        while True:
            folder = _remove_files(place.fd, levels[-1])
            if folder is not None:
                place.enter(folder)
                within.append(folder)
                levels.append(iter(names_in(place.fd)))
            elif within:
                levels.pop()
                os.close(place.leave())
                os.rmdir(within.pop(), dir_fd=place.fd)
            else:
                return
    finally:
        place.close()


def _remove_files(folder: int, names: Iterator[bytes]) -> bytes | None:
    """Returns the next folder in it, which can be entered."""
    for name in names:
        if stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            os.chmod(name, 0o700, dir_fd=folder)
            return name
        os.unlink(name, dir_fd=folder)
    return None
