"""Walks through read-only subvolumes: how two differ, and how large one is.

Nothing can change there, so a path that led to a folder still does. Links are never followed. The walks are
bounded: the files are a sandbox's.
"""

from __future__ import annotations

import errno
import itertools
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from sandlot.domain.workspaces.snapshots import MAX_DIFFERENCES, Difference

MAX_ENTRIES: Final = 1_000_000
MAX_COMPARED_BYTES: Final = 256 * 1024 * 1024
_READ_BYTES: Final = 1024 * 1024
_BLOCK_BYTES: Final = 512
# What btrfs's records of a file take at least, each with the 25 bytes of its place in the leaf. Without
# them, empty files would cost nothing, and a recount would let a sandbox have any number of them.
_INODE_BYTES: Final = 25 + 160
_NAMED: Final = 3  # records have the name: one of the inode's, two of the folder's
_NAME_BYTES: Final = (25 + 10) + 2 * (25 + 30)
_ATTRIBUTE_BYTES: Final = 25 + 30


def size_of(root: Path) -> int | None:
    """How much space a tree's files and their records need, each counted once.

    None if they cannot all be counted: a sandbox could hide files there.
    """
    total, entries = 0, 0
    linked: set[int] = set()
    try:
        for _, entry in _walk(os.fsencode(root)):
            entries += 1
            if entries > MAX_ENTRIES:
                return None
            total += _NAME_BYTES + _NAMED * len(entry.name)
            status = entry.stat(follow_symlinks=False)
            if not stat.S_ISDIR(status.st_mode) and status.st_nlink > 1:
                if status.st_ino in linked:
                    continue
                linked.add(status.st_ino)
            total += _INODE_BYTES + status.st_blocks * _BLOCK_BYTES + _attribute_bytes(entry.path)
    except _TooManyError:
        return None
    except OSError as error:
        if error.errno in (errno.ENAMETOOLONG, errno.E2BIG):
            return None
        raise
    return total


def _attribute_bytes(path: bytes) -> int:
    """What a file's extended attributes need."""
    return sum(
        _ATTRIBUTE_BYTES + len(os.fsencode(name)) + len(os.getxattr(path, name, follow_symlinks=False))
        for name in os.listxattr(path, follow_symlinks=False)
    )


def compare(old: Path, new: Path) -> Difference:
    return _Comparison(os.fsencode(old), os.fsencode(new)).run()


class _Comparison:
    def __init__(self, old: bytes, new: bytes) -> None:
        self._old, self._new = old, new
        self._found: dict[str, list[bytes]] = {"added": [], "changed": [], "removed": []}
        self._entries = 0
        self._compared_bytes = 0
        self._truncated = False

    def run(self) -> Difference:
        folders = [b""]
        while folders and not self._truncated:
            here = folders.pop()
            try:
                folders += self._compare_folder(here)
            except _TooManyError:
                self._truncated = True
            except OSError as error:
                if error.errno != errno.ENAMETOOLONG:
                    raise
                self._truncated = True
        names = {kind: tuple(sorted(map(_text, paths))) for kind, paths in self._found.items()}
        return Difference(**names, truncated=self._truncated)

    def _compare_folder(self, here: bytes) -> list[bytes]:
        """Note what differs directly in this folder. Returns the folders to go on with."""
        old, new = _entries(self._old, here), _entries(self._new, here)
        common = []
        for name in sorted(old.keys() | new.keys()):
            if not self._count():
                break
            path = os.path.join(here, name)
            if name not in old:
                self._note("added", self._new, path, new[name])
            elif name not in new:
                self._note("removed", self._old, path, old[name])
            else:
                if self._differ(path, old[name], new[name]):
                    self._add("changed", path)
                was_folder, is_folder = _is_folder(old[name]), _is_folder(new[name])
                if was_folder and is_folder:
                    common.append(path)
                elif was_folder:
                    self._note_inside("removed", self._old, path)
                elif is_folder:
                    self._note_inside("added", self._new, path)
        return common[::-1]

    def _differ(self, path: bytes, old: os.DirEntry[bytes], new: os.DirEntry[bytes]) -> bool:
        a, b = old.stat(follow_symlinks=False), new.stat(follow_symlinks=False)
        if (a.st_mode, a.st_uid, a.st_gid, a.st_rdev) != (b.st_mode, b.st_uid, b.st_gid, b.st_rdev):
            return True
        if stat.S_ISDIR(a.st_mode):
            return False  # what is in it is compared by itself
        # A sandbox cannot set an inode's time of change, so an untouched file is known by it.
        if (a.st_ino, a.st_ctime_ns, a.st_size) == (b.st_ino, b.st_ctime_ns, b.st_size):
            return False
        if stat.S_ISLNK(a.st_mode):
            return os.readlink(old.path) != os.readlink(new.path)
        if a.st_size != b.st_size:
            return True
        return stat.S_ISREG(a.st_mode) and not self._same_content(old.path, new.path, a.st_size)

    def _same_content(self, old: bytes, new: bytes, size: int) -> bool:
        self._compared_bytes += size
        if self._compared_bytes > MAX_COMPARED_BYTES:
            return False  # in doubt, it has changed
        with open(old, "rb") as a, open(new, "rb") as b:
            while content := a.read(_READ_BYTES):
                if b.read(_READ_BYTES) != content:
                    return False
        return True

    def _note(self, kind: str, root: bytes, path: bytes, entry: os.DirEntry[bytes]) -> None:
        self._add(kind, path)
        if _is_folder(entry):
            self._note_inside(kind, root, path)

    def _note_inside(self, kind: str, root: bytes, path: bytes) -> None:
        for inside, _ in _walk(os.path.join(root, path)):
            if self._truncated or not self._count():
                return
            self._add(kind, os.path.join(path, inside))

    def _add(self, kind: str, path: bytes) -> None:
        if len(self._found[kind]) >= MAX_DIFFERENCES:
            self._truncated = True
        else:
            self._found[kind].append(path)

    def _count(self) -> bool:
        self._entries += 1
        if self._entries > MAX_ENTRIES:
            self._truncated = True
        return not self._truncated


def _walk(root: bytes) -> Iterator[tuple[bytes, os.DirEntry[bytes]]]:
    """Everything below a folder, with its path from there.

    ``OSError`` where a path is too long, ``_TooManyError`` where a folder has too many entries.
    """
    folders = [b""]
    while folders:
        here = folders.pop()
        entries = _entries(root, here)
        for name in sorted(entries):
            path = os.path.join(here, name)
            yield path, entries[name]
            if _is_folder(entries[name]):
                folders.append(path)


def _entries(root: bytes, path: bytes) -> dict[bytes, os.DirEntry[bytes]]:
    """``_TooManyError`` before a folder with any number of names fills the worker's memory."""
    with os.scandir(os.path.join(root, path)) as entries:
        found = {entry.name: entry for entry in itertools.islice(entries, MAX_ENTRIES + 1)}
    if len(found) > MAX_ENTRIES:
        raise _TooManyError
    return found


def _is_folder(entry: os.DirEntry[bytes]) -> bool:
    return entry.is_dir(follow_symlinks=False)


def _text(path: bytes) -> str:
    """A path as text, whatever bytes its names have."""
    return path.decode("utf-8", "backslashreplace")


class _TooManyError(Exception):
    """A folder has more entries than a walk may see."""
