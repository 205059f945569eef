"""Why a worker takes no new sessions."""

from __future__ import annotations

from sandlot.domain.errors import Unavailable


def stopping() -> Unavailable:
    return Unavailable(
        "this server is stopping and takes no new sessions",
        retry_after_s=2.0,
        details={"reason": "stopping"},
    )


def draining() -> Unavailable:
    return Unavailable(
        "this worker is being emptied and takes no new sessions",
        retry_after_s=1.0,
        details={"reason": "draining"},
    )
