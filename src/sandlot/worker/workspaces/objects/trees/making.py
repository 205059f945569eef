"""Makes a tree from its records, in an empty folder. What a record says is checked before it is done."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from sandlot.domain.errors import InvalidRequest
from sandlot.domain.workspaces.objects.entry_names import check_entry_name, check_target, damaged
from sandlot.domain.workspaces.objects.limits import MAX_DEPTH
from sandlot.providers.trees.place import Place, names_in
from sandlot.worker.workspaces.objects.manifests.records import (
    FileRecord,
    FolderRecord,
    HardLinkRecord,
    SpecialRecord,
    SymlinkRecord,
)

_NEW_FILE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
# Zeros in a sparse file are left out in these steps.
BLOCK_BYTES: Final = 4096
_ZEROS: Final = bytes(BLOCK_BYTES)


class TreeMaker:
    """Everything that it makes belongs to the owner of the folder."""

    def __init__(self, into: Path) -> None:
        self._place = Place(into)
        folder = os.fstat(self._place.fd)
        owner = (folder.st_uid, folder.st_gid)
        self._owner = None if owner == (os.geteuid(), os.getegid()) else owner
        self._folders: list[FolderRecord] = []
        self._last: list[bytes] = []
        # Where each entry is that may get other names: the folders, its name.
        self._linked: dict[int, tuple[tuple[bytes, ...], bytes]] = {}
        if names_in(self._place.fd):
            self._place.close()
            raise InvalidRequest(f"The folder {into} is not empty, so no snapshot can be loaded into it.")
        self._root = os.dup(self._place.fd)

    def close(self) -> None:
        self._place.close()
        os.close(self._root)

    @property
    def is_complete(self) -> bool:
        return not self._folders and bool(self._last)

    def enter(self, record: FolderRecord) -> None:
        if not self._folders:
            if record.name or self._last:
                raise damaged("the manifest does not begin with one folder")
            self._last.append(b"")
        else:
            if len(self._folders) > MAX_DEPTH:
                raise damaged("there are too many folders inside each other")
            self._check(record.name)
            os.mkdir(record.name, 0o700, dir_fd=self._place.fd)
            self._place.enter(record.name)
        self._folders.append(record)
        self._last.append(b"")

    def leave(self) -> None:
        if not self._folders:
            raise damaged("a folder ends that did not begin")
        record = self._folders.pop()
        self._last.pop()
        left = self._place.leave() if self._folders else os.dup(self._place.fd)
        try:
            self._finish(left, record, stat.S_IMODE(record.mode))
        finally:
            os.close(left)

    @contextlib.contextmanager
    def file(self, record: FileRecord) -> Iterator[NewFile]:
        """A context in which the file is written. It gets its mode and times at its end."""
        self._check(record.name)
        opened = os.open(record.name, _NEW_FILE, 0o600, dir_fd=self._place.fd)
        try:
            new = NewFile(opened, sparse=record.sparse)
            yield new
            if new.size != record.size:
                raise damaged(f"the file {record.name!r:.80} has the wrong size")
            new.complete()
            self._finish(opened, record, record.mode)
        finally:
            os.close(opened)
        self._remember(record)

    def symlink(self, record: SymlinkRecord) -> None:
        self._check(record.name)
        os.symlink(check_target(record.target), record.name, dir_fd=self._place.fd)
        self._finish_name(record)

    def special(self, record: SpecialRecord) -> None:
        self._check(record.name)
        kind = stat.S_IFSOCK if record.socket else stat.S_IFIFO
        os.mknod(record.name, kind | 0o600, dir_fd=self._place.fd)
        # A socket or pipe that was just made, in a folder that only we use: no link is followed.
        if self._owner is not None:
            os.chown(record.name, *self._owner, dir_fd=self._place.fd, follow_symlinks=False)
        os.chmod(record.name, record.mode, dir_fd=self._place.fd)
        self._finish_name(record)

    def hard_link(self, record: HardLinkRecord) -> None:
        self._check(record.name)
        found = self._linked.get(record.inode)
        if found is None:
            raise damaged(f"{record.name!r:.80} is another name of a file that is not there")
        folders, name = found
        place = Place(self._root)
        try:
            for folder in folders:
                place.enter(folder)
            os.link(
                name,
                record.name,
                src_dir_fd=place.fd,
                dst_dir_fd=self._place.fd,
                follow_symlinks=False,
            )
        finally:
            place.close()

    # --- checks and metadata ------------------------------------------------------------------

    def _check(self, name: bytes) -> None:
        if not self._folders:
            raise damaged("there is a file outside of the workspace")
        self._last[-1] = check_entry_name(name, after=self._last[-1])

    def _remember(self, record: FileRecord | SymlinkRecord | SpecialRecord) -> None:
        if record.linked:
            folders = tuple(folder.name for folder in self._folders[1:])
            self._linked[record.inode] = (folders, record.name)

    def _finish(self, opened: int, record: FileRecord | FolderRecord, mode: int) -> None:
        """The owner first: changing it clears bits of the mode."""
        if self._owner is not None:
            os.fchown(opened, *self._owner)
        for name, value in record.attributes:
            if not name.startswith(b"user."):
                raise damaged("an extended attribute is not a user's")
            os.setxattr(opened, name, value)
        os.fchmod(opened, mode)
        os.utime(opened, ns=_times(record))

    def _finish_name(self, record: SymlinkRecord | SpecialRecord) -> None:
        if self._owner is not None and isinstance(record, SymlinkRecord):
            os.chown(record.name, *self._owner, dir_fd=self._place.fd, follow_symlinks=False)
        os.utime(record.name, ns=_times(record), dir_fd=self._place.fd, follow_symlinks=False)
        self._remember(record)


class NewFile:
    """``size``: how much of it is written, or a hole."""

    def __init__(self, opened: int, *, sparse: bool) -> None:
        self.size = 0
        self._opened = opened
        self._sparse = sparse

    def write(self, data: memoryview) -> None:
        if self._sparse:
            self._write_sparsely(data)
        else:
            self._write(data, self.size)
        self.size += len(data)

    def skip(self, length: int) -> None:
        self.size += length

    def complete(self) -> None:
        os.ftruncate(self._opened, self.size)

    def _write_sparsely(self, data: memoryview) -> None:
        """Write what is between blocks of zeros."""
        start = 0
        for place in range(0, len(data), BLOCK_BYTES):
            block = data[place : place + BLOCK_BYTES]
            if block.tobytes() == _ZEROS[: len(block)]:
                self._write(data[start:place], self.size + start)
                start = place + len(block)
        self._write(data[start:], self.size + start)

    def _write(self, data: memoryview, place: int) -> None:
        while data:
            written = os.pwrite(self._opened, data, place)
            data, place = data[written:], place + written


def _times(record: FileRecord | FolderRecord | SymlinkRecord | SpecialRecord) -> tuple[int, int]:
    changed = record.seconds * 10**9 + record.nanoseconds
    return changed, changed
