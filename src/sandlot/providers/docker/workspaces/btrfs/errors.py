"""Translates the file system's errors into domain errors."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator

import structlog

from sandlot.domain.errors import EngineProblem, InvalidRequest, StorageFull

log = structlog.get_logger("sandlot.workspaces")


def is_full(error: OSError) -> bool:
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


@contextlib.contextmanager
def unless_full(call: str) -> Iterator[None]:
    """A context for what can be left undone on a full file system, on which nothing else would start."""
    try:
        yield
    except OSError as error:
        if not is_full(error):
            raise
        log.warning("the workspace storage is full, so this was left undone", call=call)


@contextlib.contextmanager
def store_errors(call: str) -> Iterator[None]:
    """Clients read these errors, so paths go only to the log."""
    try:
        yield
    except OSError as error:
        log.warning("operation on the workspace storage failed", call=call, error=str(error))
        reason = error.strerror or type(error).__name__
        if is_full(error):
            raise StorageFull(
                f"Cannot {call}: the workspace storage is full. Delete snapshots or sessions, then retry."
            ) from error
        raise EngineProblem(f"Cannot {call}: {reason}.", retryable=True) from error
    except ValueError as error:
        raise InvalidRequest(f"Cannot {call}: {error}.") from error
