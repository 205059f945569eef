"""Translates the host's own errors into domain errors."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator

import structlog

from sandlot.domain.errors import EngineProblem, StorageFull

log = structlog.get_logger("sandlot.host")


@contextlib.contextmanager
def host_errors(call: str) -> Iterator[None]:
    """Raises the host's errors as domain errors that are retryable.

    The host may be out of file descriptors or disk space, which can pass. Clients read these
    errors, so host paths go only to the log.
    """
    try:
        yield
    except OSError as error:
        log.warning("file operation on the host failed", call=call, error=str(error))
        reason = error.strerror or type(error).__name__
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StorageFull(f"{call}: {reason} (in the data folder).") from error
        raise EngineProblem(f"{call}: {reason}", retryable=True) from error
