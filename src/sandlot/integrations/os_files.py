"""What the sandbox's file system said, as the ``OSError`` that Python has for it."""

from __future__ import annotations

import errno
import os
from typing import Final

from sandlot.domain.errors import FileProblem

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
