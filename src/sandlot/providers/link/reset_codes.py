"""Translates RESET codes into domain errors, by one closed table.

A code that is not in the table is a failure of the agent itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from sandlot.domain.errors import (
    FILE_REASONS,
    Busy,
    Conflict,
    FileProblem,
    InvalidRequest,
    LinkInterrupted,
    NotFound,
    SandlotError,
    StorageFull,
    Unsupported,
)
from sandlot.providers.link.stream import StreamReset

_BY_CODE: Final[Mapping[str, type[SandlotError]]] = {
    "bad_request": InvalidRequest,
    "unsupported": Unsupported,
    "busy": Busy,
    "not_found": NotFound,
    "exists": Conflict,
    "conflict": Conflict,
    "permission_denied": InvalidRequest,
    "not_a_directory": InvalidRequest,
    "is_a_directory": InvalidRequest,
    "not_regular": InvalidRequest,
    "not_empty": InvalidRequest,
    "no_space": StorageFull,
    "too_large": InvalidRequest,
    "interrupted": LinkInterrupted,
    "gone": NotFound,
    "resource_exhausted": Busy,
    "cancelled": LinkInterrupted,
    "refused": NotFound,  # nothing listens at that address
    "internal": SandlotError,
}


def domain_error(reset: StreamReset, path: str | None = None) -> SandlotError:
    """Returns the domain error for a reset.

    File operations pass ``path``, so that errors from the file system become a ``FileProblem``.
    """
    if path is not None and reset.code in FILE_REASONS:
        return FileProblem(reset.message or reset.code, reason=reset.code, path=path)
    return _BY_CODE.get(reset.code, SandlotError)(reset.message or reset.code)
