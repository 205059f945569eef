"""Mounts that show files of one user as another user's, so that sharing files needs no chown.

On disk, all workspaces belong to one user. A sandbox has a user of its own. The mount at /sandbox maps one
to the other, and root to root. So a snapshot's files suit any sandbox without a write.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from sandlot.providers.docker.host.users import IMAGE_UID

# The user and group that every workspace's files have on disk.
FILES_UID: Final = IMAGE_UID
# These numbers are the same on all machines.
_OPEN_TREE, _MOVE_MOUNT, _MOUNT_SETATTR = 428, 429, 442
_AT_EMPTY_PATH = 0x1000
_OPEN_TREE_CLONE, _OPEN_TREE_CLOEXEC = 1, os.O_CLOEXEC
_MOVE_FROM_EMPTY_PATH = 0x4
_NOSUID, _NODEV, _NOATIME, _ALL_ATIME, _IDMAP = 0x2, 0x4, 0x10, 0x70, 0x100000
_PRIVATE = 1 << 18
_DETACH = 2
_AT_FDCWD = -100
HELPER_SECONDS = 10.0

_libc = ctypes.CDLL(None, use_errno=True)


class _MountAttributes(ctypes.Structure):
    _fields_ = [
        ("attr_set", ctypes.c_uint64),
        ("attr_clr", ctypes.c_uint64),
        ("propagation", ctypes.c_uint64),
        ("userns_fd", ctypes.c_uint64),
    ]


def mount_for(uid: int, folder: Path, target: Path) -> None:
    """Mount a folder with its subvolumes, so that its files belong to this user.

    No file of it is setuid or a device there. Reading changes no times: it would be a change of the files.
    """
    with _user_namespace(uid) as namespace:
        tree = _syscall(
            _OPEN_TREE,
            _AT_FDCWD,
            os.fsencode(folder),
            _OPEN_TREE_CLONE | _OPEN_TREE_CLOEXEC,
            what="open_tree",
        )
        try:
            attributes = _MountAttributes(
                _NOSUID | _NODEV | _NOATIME | _IDMAP, _ALL_ATIME, _PRIVATE, namespace
            )
            size = ctypes.sizeof(attributes)
            _syscall(
                _MOUNT_SETATTR,
                tree,
                b"",
                _AT_EMPTY_PATH,
                ctypes.byref(attributes),
                size,
                what="mount_setattr",
            )
            _syscall(
                _MOVE_MOUNT,
                tree,
                b"",
                _AT_FDCWD,
                os.fsencode(target),
                _MOVE_FROM_EMPTY_PATH,
                what="move_mount",
            )
        finally:
            os.close(tree)


def unmount(target: Path) -> None:
    """Succeeds if nothing is mounted there."""
    # Detached: a mount that a dead container's last process holds goes with that process.
    while _libc.umount2(os.fsencode(target), _DETACH) == 0:
        pass
    if (error := ctypes.get_errno()) not in (errno.EINVAL, errno.ENOENT):
        raise OSError(error, os.strerror(error), "umount")


@contextlib.contextmanager
def _user_namespace(uid: int) -> Iterator[int]:
    """A descriptor of a user namespace that says how to map. A short-lived helper process makes it."""
    with subprocess.Popen(
        ["unshare", "--user", "cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as helper:
        assert helper.stdin is not None
        assert helper.stdout is not None
        try:
            helper.stdin.write(b"\n")
            helper.stdin.flush()
            if helper.stdout.read(1) != b"\n":  # from here on it is in its namespace
                raise OSError(errno.EPERM, "cannot make a user namespace")
            folder = Path(f"/proc/{helper.pid}")
            for name in ("uid_map", "gid_map"):
                # Root, who owns the parent folder, stays root.
                (folder / name).write_text(f"0 0 1\n{FILES_UID} {uid} 1\n")
            namespace = os.open(folder / "ns" / "user", os.O_RDONLY | os.O_CLOEXEC)
        finally:
            helper.stdin.close()
            helper.wait(HELPER_SECONDS)
    try:
        yield namespace
    finally:
        os.close(namespace)


def _syscall(number: int, *arguments: object, what: str) -> int:
    wide = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    result = int(_libc.syscall(ctypes.c_long(number), *wide))
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error), what)
    return result
