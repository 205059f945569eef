"""Writes an image's workspace from the engine's archive of it.

The archive is of an image that somebody else built. So nothing in it is followed: every parent
folder is opened without links, and every name must be new.
"""

from __future__ import annotations

import os
import shutil
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

from sandlot.domain.errors import EngineProblem
from sandlot.providers.docker.spec import WORKSPACE_TARGET
from sandlot.providers.docker.workspaces.btrfs.mounts import FILES_UID

_PREFIX: Final = tuple(Path(WORKSPACE_TARGET).parts[1:])
_COPY_BYTES: Final = 1024 * 1024
_NEW_FILE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def fill(folder: int, archive: IO[bytes]) -> None:
    """Write an image's workspace from the archive of its /sandbox into an empty folder."""
    try:
        with tarfile.open(fileobj=archive, mode="r:") as tar:
            folders = [member for member in tar if _extract(folder, tar, member)]
        for member in reversed(folders):  # their times and modes, once they are full
            with _parent(folder, _parts(member.name)) as (parent, name):
                _finish(parent, name, member)
    except (tarfile.TarError, ValueError, FileExistsError, NotADirectoryError) as error:
        raise EngineProblem(f"Cannot read the image's workspace: {error}") from error
    os.fchown(folder, FILES_UID, FILES_UID)
    os.fchmod(folder, 0o755)


def _extract(root: int, tar: tarfile.TarFile, member: tarfile.TarInfo) -> bool:
    """Write one member. True for a folder, which gets its mode later."""
    parts = _parts(member.name)
    if not parts or member.isdev():
        return False
    with _parent(root, parts) as (parent, name):
        if member.isdir():
            os.mkdir(name, 0o700, dir_fd=parent)
            return True
        if member.issym():
            os.symlink(member.linkname, name, dir_fd=parent)
        elif member.islnk():
            with _parent(root, _parts(member.linkname)) as (source, linked):
                os.link(linked, name, src_dir_fd=source, dst_dir_fd=parent, follow_symlinks=False)
            return False
        elif (content := tar.extractfile(member)) is not None:
            with os.fdopen(os.open(name, _NEW_FILE, 0o600, dir_fd=parent), "wb") as file:
                shutil.copyfileobj(content, file, _COPY_BYTES)
        else:
            return False
        _finish(parent, name, member)
    return False


def _finish(parent: int, name: str, member: tarfile.TarInfo) -> None:
    os.chown(name, FILES_UID, FILES_UID, dir_fd=parent, follow_symlinks=False)
    if not member.issym():
        os.chmod(name, member.mode & 0o777, dir_fd=parent)
    os.utime(name, (member.mtime, member.mtime), dir_fd=parent, follow_symlinks=False)


def _parts(name: str) -> tuple[str, ...]:
    """A member's place in the workspace; empty for the workspace itself and what is above it."""
    parts = tuple(part for part in name.split("/") if part not in ("", "."))
    if ".." in parts or (parts != _PREFIX[: len(parts)] and parts[: len(_PREFIX)] != _PREFIX):
        raise ValueError(f"{name!r:.200} is not in {WORKSPACE_TARGET}")
    return parts[len(_PREFIX) :]


@contextmanager
def _parent(root: int, parts: tuple[str, ...]) -> Iterator[tuple[int, str]]:
    if not parts:
        raise ValueError("a link to the workspace itself")
    folder = os.dup(root)
    try:
        for part in parts[:-1]:
            inner = os.open(part, _FOLDER, dir_fd=folder)
            os.close(folder)
            folder = inner
        yield folder, parts[-1]
    finally:
        os.close(folder)
