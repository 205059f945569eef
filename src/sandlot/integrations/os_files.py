"""Sandbox files that behave like local ones in Python: the same errors and permission checks."""

from __future__ import annotations

import errno
import os
from typing import Final

from sandlot.client.async_files import AsyncFiles
from sandlot.domain.errors import FileProblem
from sandlot.domain.files import FileType

_ERRNO_BY_REASON: Final = {
    "not_found": errno.ENOENT,
    "exists": errno.EEXIST,
    "permission_denied": errno.EACCES,
    "not_a_directory": errno.ENOTDIR,
    "is_a_directory": errno.EISDIR,
    "not_empty": errno.ENOTEMPTY,
    "no_space": errno.ENOSPC,
    "too_large": errno.EFBIG,
}


def os_error(problem: FileProblem) -> OSError:
    """The matching ``OSError`` subclass: ``FileNotFoundError``, ``PermissionError`` and so on."""
    number = _ERRNO_BY_REASON.get(problem.reason)
    if number is None:  # not a regular file, or not a valid path: the message says which
        return OSError(errno.EINVAL, problem.message, problem.path)
    return OSError(number, os.strerror(number), problem.path)


async def write_unless_read_only(files: AsyncFiles, path: str, content: bytes | str) -> None:
    """Write a file unless it is read-only.

    The service replaces the whole file, which needs write permission for the folder but not for the
    file. So the file's own mode is checked here.
    """
    try:
        entry = await files.stat(path)
    except FileProblem as problem:
        if problem.reason != "not_found":
            raise
    else:
        if entry.type is FileType.FILE and not entry.mode & 0o222:
            raise FileProblem(
                f"{path} is read-only. Make it writable first.", reason="permission_denied", path=path
            )
    await files.write(path, content)
