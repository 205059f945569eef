"""Unpacks an archive into an empty folder, as root, whoever made it.

Every folder is opened by one name in the one above it, and never through a link. So nothing outside is
reached, whatever the names say. Nobody else can reach the folder meanwhile.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from sandlot.domain.workspaces.objects.limits import MIB, MIN_HOLE_BYTES
from sandlot.providers.archives import members
from sandlot.providers.archives.compression import Decompressed
from sandlot.providers.archives.limits import (
    ENTRY_BYTES,
    MAX_KEPT_BYTES,
    Limits,
    damaged,
    refused,
    shown,
    too_large,
)
from sandlot.providers.archives.members import Kind, Member, Members

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_FILE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_PIECE_BYTES: Final = 1 * MIB
_ZEROS: Final = bytes(MIN_HOLE_BYTES)
_CHECK_EVERY_BYTES: Final = 64 * MIB
# Of a folder that the archive has things in, but no entry for.
_IMPLIED_MODE: Final = 0o755


def unpack(read: Callable[[], bytes], folder: Path, limits: Limits) -> None:
    """``read``: returns the next piece of the archive, and ``b""`` at its end. ``folder``: empty; everything
    will belong to its owner. On an error, the folder is left half full.
    """
    until = time.monotonic() + limits.max_s

    def in_time() -> bytes:
        if time.monotonic() > until:
            raise too_large(f"it took more than {limits.max_s:g} s to send and unpack")
        return read()

    source = Members(Decompressed(in_time), limits)
    tree = _Tree(folder, limits)
    try:
        for member in source:
            tree.add(member, source)
            if time.monotonic() > until:
                raise too_large(f"it took more than {limits.max_s:g} s to unpack")
        source.finish()
        tree.complete()
    finally:
        tree.close()


class _Tree:
    def __init__(self, folder: Path, limits: Limits) -> None:
        self._root = os.open(folder, _FOLDER)
        owner = os.fstat(self._root)
        self._owner = (owner.st_uid, owner.st_gid)
        self._is_owner = self._owner == (os.geteuid(), os.getegid())
        self._limits = limits
        # Folders get their modes and times once they are full. None: the archive has no entry for it yet.
        self._folders: dict[members.Path, Member | None] = {}
        self._kept_bytes = 0
        self._here: members.Path = ()
        self._fd = os.dup(self._root)
        self._written = 0
        self._unchecked = 0

    def close(self) -> None:
        os.close(self._fd)
        os.close(self._root)

    def add(self, member: Member, source: Members) -> None:
        self._charge(ENTRY_BYTES)
        try:
            if member.kind is Kind.FOLDER:
                self._folder(member)
                return
            parent, name = self._enter(member.path[:-1]), member.path[-1]
            if member.kind is Kind.FILE:
                self._file(parent, name, member, source)
            elif member.kind is Kind.SYMLINK:
                os.symlink(member.target, name, dir_fd=parent)
                self._own(parent, name)
                os.utime(name, ns=_times(member), dir_fd=parent, follow_symlinks=False)
            else:
                self._hard_link(parent, name, member)
        except FileExistsError as error:
            raise refused(f"{member.shown} is in it twice") from error
        except OverflowError as error:
            raise damaged(f"{member.shown} has no valid time or size") from error
        except OSError as error:
            if error.errno in (errno.EINVAL, errno.EFBIG, errno.ENOTSUP):
                raise refused(
                    f"{member.shown} has a time, a size or attributes that cannot be stored"
                ) from error
            raise

    def complete(self) -> None:
        """Give all folders their modes and times, the inner ones first."""
        for path in sorted(self._folders, reverse=True):
            member = self._folders[path]
            opened = self._open(path)
            try:
                self._finish(opened, member)
            except OverflowError as error:
                raise damaged(f"{shown(b'/'.join(path))} has no valid time") from error
            finally:
                os.close(opened)

    # --- entries ------------------------------------------------------------------------------

    def _folder(self, member: Member) -> None:
        if member.path:
            self._enter(member.path)
        else:
            self._folders.setdefault((), None)
        if self._folders.get(member.path) is not None:
            raise refused(f"{member.shown} is in it twice")
        self._folders[member.path] = member
        self._keep(sum(len(name) + len(value) for name, value in member.attributes))

    def _file(self, parent: int, name: bytes, member: Member, source: Members) -> None:
        opened = os.open(name, _NEW_FILE, 0o600, dir_fd=parent)
        try:
            for start, length in member.data:
                while length:
                    piece = source.read(min(length, _PIECE_BYTES))
                    self._write(opened, start, piece)
                    start += len(piece)
                    length -= len(piece)
            os.ftruncate(opened, member.size)
            self._finish(opened, member)
        finally:
            os.close(opened)

    def _write(self, opened: int, place: int, data: bytes) -> None:
        """Long runs of zeros become holes again."""
        view = memoryview(data)
        for start in range(0, len(view), MIN_HOLE_BYTES):
            block = view[start : start + MIN_HOLE_BYTES]
            if block == _ZEROS[: len(block)]:
                continue
            self._charge(len(block))
            at = place + start
            while block:
                written = os.pwrite(opened, block, at)
                block, at = block[written:], at + written

    def _hard_link(self, parent: int, name: bytes, member: Member) -> None:
        linked = member.linked
        try:
            if not linked:
                raise FileNotFoundError
            source = self._open(linked[:-1])
            try:
                os.link(linked[-1], name, src_dir_fd=source, dst_dir_fd=parent, follow_symlinks=False)
            finally:
                os.close(source)
        except FileExistsError:
            raise
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
                raise
            why = "which has too many names" if error.errno == errno.EMLINK else "which is no file before it"
            raise refused(f"{member.shown} is a hard link to {shown(b'/'.join(linked))}, {why}") from error

    # --- folders ------------------------------------------------------------------------------

    def _enter(self, path: members.Path) -> int:
        """Open a folder, and make it and those above it if they are not there. It is open until the next."""
        if path != self._here:
            opened = self._open(path, make=True)
            os.close(self._fd)
            self._fd, self._here = opened, path
        return self._fd

    def _open(self, path: members.Path, *, make: bool = False) -> int:
        opened = os.dup(self._root)
        try:
            for depth, name in enumerate(path, 1):
                try:
                    inner = os.open(name, _FOLDER, dir_fd=opened)
                except FileNotFoundError:
                    if not make:
                        raise
                    os.mkdir(name, 0o700, dir_fd=opened)
                    inner = os.open(name, _FOLDER, dir_fd=opened)
                    self._folders[path[:depth]] = None
                    self._charge(ENTRY_BYTES)
                    self._keep(sum(map(len, path[:depth])))
                os.close(opened)
                opened = inner
        except OSError as error:
            os.close(opened)
            if error.errno in (errno.ENOTDIR, errno.ELOOP):
                place = shown(b"/".join(path))
                raise refused(f"{place} is a folder, and something else too") from error
            raise
        except BaseException:
            os.close(opened)
            raise
        return opened

    # --- metadata and limits ------------------------------------------------------------------

    def _finish(self, opened: int, member: Member | None) -> None:
        """The owner first: changing it clears bits of the mode."""
        if not self._is_owner:
            os.fchown(opened, *self._owner)
        if member is None:
            os.fchmod(opened, _IMPLIED_MODE)
            return
        for name, value in member.attributes:
            os.setxattr(opened, name, value)
        os.fchmod(opened, member.mode)
        os.utime(opened, ns=_times(member))

    def _own(self, parent: int, name: bytes) -> None:
        if not self._is_owner:
            os.chown(name, *self._owner, dir_fd=parent, follow_symlinks=False)

    def _charge(self, size: int) -> None:
        self._written += size
        self._unchecked += size
        most = self._limits.max_bytes
        if most is not None and self._written > most:
            raise too_large(f"its files need more than {most:,} bytes")
        if self._unchecked >= _CHECK_EVERY_BYTES:
            self._unchecked = 0
            self._limits.check()

    def _keep(self, size: int) -> None:
        # A folder's path and what is kept of it, in this process.
        self._kept_bytes += size + 500
        if self._kept_bytes > MAX_KEPT_BYTES:
            raise too_large("it has too many folders with long names")


def _times(member: Member) -> tuple[int, int]:
    return member.changed_ns, member.changed_ns
