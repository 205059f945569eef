"""Files in a sandbox as Python's own calls treat files here: the same errors, the same refusals."""

from __future__ import annotations

import errno
import os
from typing import Final

from sandlot.client.async_files import AsyncFiles
from sandlot.domain.errors import FileProblem
from sandlot.domain.files import FileType

_NUMBERS: Final = {
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
    """Of the subclass that its number has: ``FileNotFoundError``, ``PermissionError`` and so on."""
    number = _NUMBERS.get(problem.reason)
    if number is None:  # no regular file, or no path: the message says which
        return OSError(errno.EINVAL, problem.message, problem.path)
    return OSError(number, os.strerror(number), problem.path)


async def write_over(files: AsyncFiles, path: str, content: bytes | str) -> None:
    """Writes a file unless it is read-only.

    Files are put in place whole, which asks for the folder's permission and not for the file's.
    """
    try:
        entry = await files.stat(path)
    except FileProblem as problem:
        if problem.reason != "not_found":
            raise
    else:
        if entry.type is FileType.FILE and not entry.mode & 0o222:
            raise FileProblem(
                f"{path} is read-only: make it writable first", reason="permission_denied", path=path
            )
    await files.write(path, content)
