"""What the host itself refuses, as errors of ours."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator

import structlog

from sandlot.domain.errors import EngineProblem, StorageFull

log = structlog.get_logger("sandlot.host")


@contextlib.contextmanager
def host_errors(what: str) -> Iterator[None]:
    """A descriptor, or room on its disk: it may pass. The paths are for the log; clients read the errors."""
    try:
        yield
    except OSError as error:
        log.warning("the host refused", call=what, error=str(error))
        reason = error.strerror or type(error).__name__
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StorageFull(f"{what}: {reason}; free some space in the data directory") from error
        raise EngineProblem(f"{what}: {reason}", retryable=True) from error
